"""A run from the directory that it has written: its configuration, checked again, and what it was said to be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.runtime.folders import refuse_links
from attacks.runtime.untrusted import text
from attacks.schema.validate import Run, validate

#: Encoders that are programs. A run directory may be a stranger's: what is in it names them, it does not start them.
PROGRAMS = ("torchscript", "plugin")


@dataclass(frozen=True, eq=False)
class Earlier:
    """A run as its manifest.json tells it: `manifest` whole, and its configuration as a `run`."""

    folder: Path
    run: Run
    manifest: dict[str, Any]


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises FileNotFoundError or ValueError in one line."""
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: is it the directory of a finished run?")
    try:
        return json.loads(text(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`{path}` is not JSON ({error})") from None


def earlier(folder: Path) -> Earlier:
    """Read a run directory. Raises FileNotFoundError or ValueError in one line."""
    path = folder / "manifest.json"
    said = read_json(path)
    if not isinstance(said, dict) or not isinstance(said.get("config"), dict):
        raise ValueError(f"`{path}` has no `config`: was it written by another version?")
    try:
        config: Any = OmegaConf.create(said["config"])
        return Earlier(folder, validate(config), said)
    except (TypeError, ValueError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`{path}` is not of this version: {reason}") from None


def interrupted(folder: Path, program: str | None = None) -> Earlier:
    """A run that has not come to its end, with the engine's decision as it was made: what is missing is then done as
    it would have been.

    Args:
        program: the file or plug-in that the encoder is; whoever starts this says so, where it is one.

    Raises:
        FileNotFoundError, ValueError: no run directory, one that is finished, or an encoder that is a program.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"`resume` must be the directory of a run; there is none at {str(folder)!r}")
    refuse_links(folder)
    if not (folder / "manifest.json").exists():  # the last that is written before the first picture
        raise FileNotFoundError(f"`resume`: nothing was begun in {str(folder)!r} (no manifest.json): start the run")
    found = earlier(folder)
    if (folder / "metrics.json").exists():
        raise ValueError(f"`resume`: the run in {folder} is finished; its report is {folder / 'report.html'}")
    refuse_program(found.run, program, f"encoder.model={getattr(found.run.encoder, 'model', None)}")
    said = found.manifest
    try:
        decision = {**said["engine"]["decision"], "reuse": None, "threads": said["threads"]}
        config: Any = OmegaConf.create(said["config"] | {"engine": said["config"]["engine"] | decision})
        str(said["preset"]), [str(word) for word in said["overrides"]]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            f"`{folder / 'manifest.json'}` holds no engine decision: was it written by another version?"
        ) from None
    try:
        return replace(found, run=validate(config))
    except (TypeError, ValueError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`{folder / 'manifest.json'}` is not of this version: {reason}") from None


#: What whoever resumes a run may say beside it, because a directory may not choose it.
TYPED = ("encoder.model", "tracker.mode", "tracker.uri", "data.cache")


def typed(words: Sequence[str]) -> list[str]:
    """Of a command line what may be said to a run that is resumed."""
    return [word for word in words if word.lstrip("+").partition("=")[0] in TYPED]


def refuse_words(said: dict[str, Any], words: Sequence[str]) -> None:
    """A run goes on as it was begun. Raises ValueError for a word that would change its configuration."""
    for word in words:
        key, _, _ = word.lstrip("+~").partition("=")
        if key in TYPED:
            continue
        node: Any = said["config"]
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        began = f", which was begun with {key}={node}," if isinstance(node, str | int | float) else ""
        raise ValueError(
            f"`resume` takes the whole configuration of its run{began} and goes on with it; drop {word!r}, or start "
            "a new run"
        )


def refuse_program(run: Run, program: str | None, words: str) -> None:
    """As a preset may not choose a TorchScript file, neither may a run directory; `words` let it."""
    if run.encoder.name not in PROGRAMS or run.encoder.model == program:
        return
    raise ValueError(
        f"`encoder={run.encoder.name}` runs a program, {run.encoder.model}, so a run directory may not choose it: "
        f"where you trust it, say {words}" + (f"; got {program!r}" if program else "")
    )
