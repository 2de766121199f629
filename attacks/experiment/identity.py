"""Everything that the numbers of a run depend on, by name, so that a resumed run is the same run."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from attacks.data.table import TABLE
from attacks.encoders.engine import Decision
from attacks.encoders.weights import fingerprint
from attacks.evaluation.classes import Classes
from attacks.runtime.distributed import World
from attacks.runtime.files import sha256
from attacks.schema.validate import Run
from attacks.study.plugin_parts import plugin_parts
from attacks.study.study import Study

#: Prefixes of configuration keys that may differ when a run goes on.
FREE = ("show.", "tracker.", "checkpoint.", "data.cache.", "workers.", "shard.", "overwrite.")
#: Prefixes of configuration keys that change no number; the engine's decision is added apart.
NO_MATTER = (*FREE, "engine.", "require.")
#: A message names at most so many differences.
MAX_DIFFERENCES = 5

Identity = dict[str, str]

#: The folder of the packages attacks and transforms.
ROOT = Path(__file__).resolve().parents[2]


def run_identity(run: Run, study: Study, decision: Decision, world: World, versions: Mapping[str, str]) -> Identity:
    """Values and digests, by name, of what the numbers depend on."""
    groups = (study.truth, study.goal, study.gallery.label_numbers, study.gallery.cluster_numbers)
    right = [None if rows is None else rows.tolist() for rows in groups]
    leaves = [(name, value) for name, value in _leaves(asdict(run)) if not f"{name}.".startswith(NO_MATTER)]
    by_row = getattr(run.perturbation, "mask", None) == TABLE
    masks = [sha256(entry.file("mask")) for entry in study.queries.entries] if by_row else []
    surrogate = getattr(study.optimiser, "surrogate", None)
    parts = {name: part.digests() for name, part in plugin_parts(run).items()}
    store = None if study.fit is None else study.fit.queries.store
    return {
        **{name: json.dumps(value, default=str) for name, value in leaves},
        **{f"the file of {name}": sha256(value) for name, value in leaves if _is_file(value)},
        **{f"engine.{name}": str(value) for name, value in decision.to_dict().items()},
        **{f"the version of {name}": version for name, version in versions.items()},
        "the code of attacks and transforms": sources(),
        **({} if study.start is None else {"the run of attack.start_from": study.threat["start_from"]["sha256"]}),
        **{f"the source of {name}": source for name, (source, _) in parts.items()},
        **{f"the values of {name}": values for name, (_, values) in parts.items()},
        "the encoder's weights": fingerprint(study.encoder),
        "the encoder's fingerprint": study.identity["fingerprint"],
        **({} if surrogate is None else {"the surrogate's weights": fingerprint(surrogate)}),
        **{f"the weights of objective.encoders {i}": fingerprint(module) for i, module in enumerate(study.members)},
        "the pictures' names": identity_digest(study.queries.names),
        "the pictures' clusters": identity_digest(study.queries.clusters),
        **({} if store is None else {"the fit pictures": identity_digest([store.names, store.digests])}),
        "the pictures": identity_digest(study.queries.digests),
        **({"the digest of the masks": identity_digest(masks)} if masks else {}),
        "the gallery": gallery_digest(study),
        "what is right": identity_digest(right),
        "the number of processes": str(world.size),
        "the number of threads": str(torch.get_num_threads()),
    }


def gallery_digest(study: Study) -> str:
    """The SHA-256 of the pixels of all gallery pictures, or of the names of the classes."""
    return identity_digest(study.gallery.names if isinstance(study.gallery, Classes) else study.gallery.content)


def promises(manifest: Mapping[str, Any]) -> Identity:
    """What a run declares before its first step and must repeat, although no number depends on it."""
    command = [manifest["preset"], manifest["overrides"]]
    return {"the command": json.dumps(command), "the policy": json.dumps(manifest["policy"])}


def refuse_other_command(manifest: Mapping[str, Any], run: Run, folder: Path) -> None:
    """Raise ValueError, in one line with the differences, unless the run in `folder` has this configuration."""
    configs = (manifest["config"], json.loads(json.dumps(asdict(run))))
    leaves = (
        {name: value for name, value in _leaves(config) if not f"{name}.".startswith(FREE)} for config in configs
    )
    _refuse_differences(folder, *leaves)


def refuse_other(manifest: Mapping[str, Any], current: Identity, folder: Path) -> None:
    """Raise ValueError, with the differences, unless the run in `folder`, of `manifest`, is the `current` one."""
    previous = manifest.get("identity")
    if not isinstance(previous, dict):
        raise ValueError(f"`{folder / 'manifest.json'}` has no `identity`: was it written by another version?")
    _refuse_differences(folder, previous, current)


def _refuse_differences(folder: Path, previous: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    differences = [
        f"{name} was {_short(previous.get(name))} and is {_short(current.get(name))}"
        for name in {**previous, **current}
        if previous.get(name) != current.get(name) or (name in previous) != (name in current)
    ]
    if differences:
        suffix = f", and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
        raise ValueError(
            f"the run in {folder} was another run: {'; '.join(differences[:MAX_DIFFERENCES])}{suffix}. Its numbers "
            "would not fit together: go on as it was begun, or start a new run in another directory"
        )


@lru_cache
def sources(root: Path = ROOT) -> str:
    """The digest of the source code, presets and templates below `root`. A version number would not show an edit."""
    paths = [path for folder in ("attacks", "transforms") for path in (root / folder).rglob("*")]
    files = sorted(path for path in paths if path.suffix in (".py", ".yaml", ".html"))
    return identity_digest([(str(path.relative_to(root)), sha256(path)) for path in files])


def identity_digest(value: Any) -> str:
    """The SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(value, default=str).encode(errors="surrogatepass")).hexdigest()


def _leaves(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a configuration by their keys on the command line, and the order of stages, which run in it."""
    if isinstance(node, dict) and node:
        if name.rpartition(".")[2] == "stages":
            yield f"the order of {name}", list(node)
        for key, value in node.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, node


def _is_file(value: Any) -> bool:
    try:
        return isinstance(value, str) and Path(value).is_file()
    except (OSError, ValueError):  # not a path
        return False


def _short(value: Any) -> str:
    """A value for a message; digests by their first 12 digits."""
    text = "absent" if value is None else str(value)
    hexadecimal = len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
    return text[:12] if hexadecimal else text if len(text) <= 80 else f"{text[:77]}..."
