"""All that a run's numbers depend on, by name, so that nobody goes on with another run by mistake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from attacks.encoders.engine import Decision
from attacks.encoders.weights import fingerprint
from attacks.evaluation.classes import Classes
from attacks.experiment.parts import Parts
from attacks.runtime.distributed import World
from attacks.runtime.files import sha256
from attacks.schema.validate import Run

#: Keys of a configuration, and all below them, that change no number; the engine's decision is said apart.
NO_MATTER = ("engine.", "show.", "tracker.", "checkpoint.", "data.cache.")
#: The most differences that a message names.
SHOWN = 5

Identity = dict[str, str]

#: Where our packages lie.
ROOT = Path(__file__).resolve().parents[2]


def identity(run: Run, parts: Parts, decision: Decision, world: World, versions: Mapping[str, str]) -> Identity:
    """What the numbers depend on: the configuration and the files that it names, the code, libraries, the encoder's
    weights, the engine's decision, pictures and gallery, and how the work is shared. Words and digests by name."""
    pixels = (parts.queries.images * 255).round().to(torch.uint8).contiguous()
    right = [
        None if rows is None else rows.tolist() for rows in (parts.truth, parts.goal, parts.gallery.label_numbers)
    ]
    gallery = parts.gallery.names if isinstance(parts.gallery, Classes) else parts.gallery.digests
    leaves = [(name, value) for name, value in _leaves(asdict(run)) if not f"{name}.".startswith(NO_MATTER)]
    return {
        **{name: json.dumps(value, default=str) for name, value in leaves},
        **{f"the file of {name}": sha256(value) for name, value in leaves if _is_file(value)},
        **{f"engine.{name}": str(value) for name, value in decision.to_dict().items()},
        **{f"the version of {name}": version for name, version in versions.items()},
        "the code of attacks and transforms": sources(),
        "the encoder's weights": fingerprint(parts.encoder),
        "the pictures' names": _digest(parts.queries.names),
        "the pictures": hashlib.sha256(pixels.numpy().data).hexdigest(),
        "the gallery": _digest(gallery),
        "what is right": _digest(right),
        "the number of processes": str(world.size),
        "the number of threads": str(torch.get_num_threads()),
    }


def key_of(said: Identity) -> str:
    """One digest of all of it."""
    return _digest(said)


def refuse_other(before: Mapping[str, Any], now: Identity, folder: Path) -> None:
    """Raise ValueError, in one line with the differences, where a run in `folder` was begun as another."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if names:
        said = [f"{name} was {_short(before.get(name))} and is {_short(now.get(name))}" for name in names[:SHOWN]]
        more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ValueError(
            f"`resume`: the run in {folder} was another run: {'; '.join(said)}{more}. Its numbers would not fit "
            "together: go on as it was begun, or start a new run"
        )


@lru_cache
def sources(root: Path = ROOT) -> str:
    """The digest of our code, as it lies in `root`. A version number would not tell of an edit."""
    files = sorted(path for folder in ("attacks", "transforms") for path in (root / folder).rglob("*.py"))
    return _digest([(str(path.relative_to(root)), sha256(path)) for path in files])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode(errors="surrogatepass")).hexdigest()


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a configuration by their names, as the command line has them."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, node


def _is_file(value: Any) -> bool:
    try:
        return isinstance(value, str) and Path(value).is_file()
    except (OSError, ValueError):  # no path at all
        return False


def _short(value: Any) -> str:
    """Digests by their first letters, as far as these tell them apart."""
    text = "absent" if value is None else str(value)
    hexadecimal = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:12] if hexadecimal else text if len(text) <= 80 else f"{text[:77]}..."
