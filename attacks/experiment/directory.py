"""A run directory: its state, its lock, its records, validated again, and files.json, the digests of what a run has
written. metrics.json holds the digest of files.json, and files.json that of metrics.json with zeros in its place, so
that every byte of both is covered."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.encoders.description import MODULE
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.clock import now_text
from attacks.runtime.files import Lock, clean, is_left_over, sha256, write_json
from attacks.runtime.untrusted import contents, parse_json, refuse_links, refuse_outside, short_path
from attacks.schema import encoder as schema
from attacks.schema.encoder import in_memory
from attacks.schema.validate import Run, validate

FILES_SCHEMA = 2
#: The list of files, and the file that is written last and holds the digest of the list.
FILES, METRICS = "files.json", "metrics.json"
#: In a run directory: the folder of partial results, which a finished run has no more.
CHECKPOINT = "checkpoint"
#: Files of every run.
CORE_FILES = ["manifest.json", "events.jsonl", "per_image.csv", "steps.csv", "scores.safetensors", "report.html"]
CORE_FILES += ["perturbation.safetensors", "adversarial.png", "views.png", FILES, METRICS]
#: The most arms of a list; a run has five or six.
MOST_ARMS = 64
ZEROS = "0" * 64
#: Where the digest of files.json stands in metrics.json: a key of its first level.
PLACE = re.compile(rb'\n  "files": "([0-9a-f]{64})"')


def artefact_paths(manifest: Mapping[str, Any]) -> list[str]:
    """The relative paths of all files that the run of a manifest.json may have written, without folders. Raises
    ValueError in one line where the list is malformed, or a path leads out of the run directory."""
    artefacts = manifest.get("artefacts")
    try:
        arms, names = (list(artefacts["pictures"][key]) for key in ("arms", "names"))  # type: ignore[index]
        files, folders = (list(artefacts[key]) for key in ("files", "folders"))  # type: ignore[index]
    except (TypeError, KeyError):
        raise ValueError("manifest.json: `artefacts` must list the files of the run: start a new run") from None
    if len(arms) > MOST_ARMS:
        raise ValueError(f"manifest.json: `artefacts` must have at most {MOST_ARMS} arms; it has {len(arms)}")
    for path in (*arms, *names, *files, *folders):
        refuse_outside(path, "manifest.json")
    faults = [f"fault.{row:06d}.safetensors" for row in range(len(names))]
    return [*(f"pictures/{arm}/{name}" for arm in arms for name in names), *faults, *files]


def finish(out: Path, manifest: Mapping[str, Any], content: dict[str, Any]) -> str:
    """Write files.json, with the time, then metrics.json with its digest, which ends the run. Returns the digest."""
    content["files"] = ZEROS
    data = (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
    paths = (path for path in artefact_paths(manifest) if path not in (FILES, METRICS) and _plain(out / path))
    entries = {path: file_entry(out / path) for path in paths}
    entries[METRICS] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write_json(out / FILES, {"schema": FILES_SCHEMA, "ended": now_text(), "files": dict(sorted(entries.items()))})
    content["files"] = sha256(out / FILES)
    write_json(out / METRICS, content)
    return str(content["files"])


def file_entry(path: Path) -> dict[str, Any]:
    """The entry of a file: of metrics.json with zeros in place of the digest that it holds."""
    if path.name != METRICS:
        return {"sha256": sha256(path), "size": path.stat().st_size}
    data = path.read_bytes()
    if (match := PLACE.search(data)) is not None:
        data = data[: match.start(1)] + ZEROS.encode() + data[match.end(1) :]
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def artefact_differences(out: Path, manifest: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """A line for each file that is not as files.json has it, and for that itself; `content`: of metrics.json."""
    expected, actual = str(content.get("files")), sha256(out / FILES)
    if expected != actual:
        yield f"{FILES}: its sha256 is {actual[:12]}, metrics.json recorded {expected[:12]}"
    try:
        entries = dict(parse_json(contents(out / FILES), FILES)["files"])
        possible = artefact_paths(manifest)
        for path in entries:
            refuse_outside(path, FILES)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        yield f"{FILES}: it is malformed ({' '.join(str(error).split())})"
        return
    for path in sorted(entries.keys() - set(possible)):
        yield f"{path}: {FILES} lists it, which is no file of this run"
    for path in possible:
        if path == FILES:
            continue
        if not _plain(out / path):
            if path in entries:
                yield f"{path}: it is missing, and {FILES} lists it"
        elif path not in entries:
            yield f"{path}: it is there, and {FILES} does not list it"
        elif (today := file_entry(out / path)) != entries[path]:
            was = entries[path] if isinstance(entries[path], dict) else {}
            yield (
                f"{path}: its sha256 is {today['sha256'][:12]} of {today['size']} bytes, {FILES} recorded "
                f"{str(was.get('sha256'))[:12]} of {was.get('size')}"
            )


#: Encoders that run code or send pictures away. A run directory may come from a stranger, so it alone may not start
#: one.
PROGRAMS = (*schema.PROGRAMS, "plugin")
#: Of manifest.json and metrics.json.
SCHEMA = 6
#: What those who read a finished run need of its two records: keys with a type, or the shape of what is in them.
MANIFEST_SHAPE = {
    **dict.fromkeys(("preset", "started", "platform", "device", "cpu"), str),
    **dict.fromkeys(("identity", "versions"), dict),
    "overrides": list,
    "engine": {"decision": dict},
    "encoder": {"name": str, "fingerprint": str},
    "gallery": {"sha256": str, "size": int, "source": str},
    "policy": ({"sha256": str, "lock": ({"date": str, "sha256": str}, None)}, None),
}
SANITY = {"failed": [str], "checks": [{"name": str, "verdict": str, "words": str}], "cost": {"forward": int | float}}
DIFFERENCE = {"low": int | float, "high": int | float}
METRICS_SHAPE = {
    "encoder": {"fingerprint": str},
    "threat": {"attack": str, "optimiser": str, "patch": dict | None},
    "queries": [str],
    "sanity": (SANITY, None),
    "arms": dict,
    "cost": {"cached": int},
    "costs": dict,
    "verification": ({"thresholds": dict}, None),
    "primary": {"measure": str, "against": str, "difference": DIFFERENCE},
    "comparisons": [{"bank": str, "measure": str, "other": str, "difference": DIFFERENCE}],
    "failed": [{"picture": int, "name": str, "reason": str}],
    "failed_parts": dict,
    "fell_back": [str],
    "left": int,
    "gate": ({"policy": {"digest": str}}, None),
    "files": str,
}


@dataclass(frozen=True, eq=False)
class PreviousRun:
    """A run on disk: the content of its manifest.json, and the configuration in it as a `Run`."""

    folder: Path
    run: Run
    manifest: dict[str, Any]


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises FileNotFoundError or ValueError in one line."""
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: is it the directory of a finished run?")
    return parse_json(contents(path), f"`{path}`")


def open_run(folder: Path) -> tuple[PreviousRun, dict[str, Any]]:
    """A finished run, and the content of its metrics.json. Raises FileNotFoundError, or ValueError for a misfit."""
    content, previous = read_json(folder / "metrics.json"), previous_run(folder)
    for name, values, shape in (("metrics", content, METRICS_SHAPE), ("manifest", previous.manifest, MANIFEST_SHAPE)):
        if (lacking := misfit(values, shape)) is not None:
            fault = f"`{short_path(lacking)}` is missing or malformed" if lacking else "it is no mapping"
            raise ValueError(
                f"`{folder / name}.json` is not what a run writes: {fault}; restore the file, or make the run again"
            )
    return previous, content


def intact_run(folder: Path) -> tuple[PreviousRun, dict[str, Any]]:
    """The same of a run whose files have their digests, and no others."""
    refuse_links(folder)
    previous, content = open_run(folder)
    for change in artefact_differences(folder, previous.manifest, content):
        raise ValueError(f"`{folder}` was changed after its run: {change}; `viewproof verify` names everything")
    return previous, content


def misfit(value: Any, shape: Any) -> str | None:
    """The first key of a value that is missing, or not of its shape, with dots; None where all are. A shape is a
    type, a mapping of keys to shapes, a list of the shape of each entry, or a tuple of a shape and None, which may
    stand in its place."""
    if isinstance(shape, tuple):
        return None if value is None else misfit(value, shape[0])
    parts: list[tuple[Any, Any]] = []
    if isinstance(shape, dict) and isinstance(value, dict):
        if missing := [key for key in shape if key not in value]:
            return str(missing[0])
        parts = [*shape.items()]
    elif isinstance(shape, list) and isinstance(value, list):
        parts = [(i, shape[0]) for i in range(len(value))]
    elif isinstance(shape, dict | list) or not isinstance(value, shape):
        return ""
    places = ((key, misfit(value[key], inner)) for key, inner in parts)
    return next((f"{key}.{place}".rstrip(".") for key, place in places if place is not None), None)


def finished(out: Path) -> bool:
    """Whether the directory holds results. They are written last and at once, so an empty file is none."""
    try:
        return isinstance(json.loads((out / "metrics.json").read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False


def previous_run(folder: Path) -> PreviousRun:
    """Read a run directory. Raises FileNotFoundError or ValueError in one line."""
    path = folder / "manifest.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config"), dict):
        raise ValueError(f"`{path}` has no `config`: was it written by another version?")
    return PreviousRun(folder, _validate(manifest["config"], path), manifest)


def _validate(config: dict[str, Any], path: Path) -> Run:
    """The configuration of the manifest at `path`. Raises ValueError in one line."""
    encoder = config.get("encoder")
    is_module = isinstance(encoder, dict) and encoder.get("name") == MODULE  # which is no choice of the command line
    if is_module:
        config = config | {"encoder": config["encoder"] | {"name": "pocket"}}
    try:
        node: Any = OmegaConf.create(config)
        run = validate(node)
    except (TypeError, ValueError, OmegaConfBaseException) as error:
        raise ValueError(f"`{path}` is not of this version: {' '.join(str(error).split())}") from None
    if is_module:
        run.encoder = in_memory(run.encoder)
    return run


def interrupted_run(folder: Path, program: str | None = None) -> PreviousRun:
    """An unfinished run with the engine decision it was started with, so that resuming gives the same results.
    `program`: of an encoder that runs code, as the user gives it. Raises FileNotFoundError or ValueError."""
    if not folder.is_dir():
        raise FileNotFoundError(f"`resume` must be the directory of a run; there is none at {str(folder)!r}")
    refuse_links(folder)
    if not (folder / "manifest.json").exists():  # written last before the first picture
        raise FileNotFoundError(f"`resume`: nothing was begun in {str(folder)!r} (no manifest.json): start the run")
    previous = previous_run(folder)
    manifest, run = previous.manifest, previous.run
    if finished(folder):
        raise ValueError(f"`resume`: the run in {folder} is finished; its report is {folder / 'report.html'}")
    is_function = (run.evaluate.pipeline or "").startswith(GIVEN)
    if is_function or run.encoder.name == MODULE:
        part = "`pipeline` was a function" if is_function else "`encoder` was a module"
        raise ValueError(f"`resume`: {part} in memory, which no directory holds: start again, overwrite=true")
    refuse_program(run, program, f"encoder.model={getattr(run.encoder, 'model', None)}")
    try:
        decision = {**manifest["engine"]["decision"], "reuse": None, "threads": manifest["threads"]}
        config = manifest["config"] | {"engine": manifest["config"]["engine"] | decision}
        str(manifest["preset"]), [str(word) for word in manifest["overrides"]]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            f"`{folder / 'manifest.json'}` holds no engine decision: was it written by another version?"
        ) from None
    return replace(previous, run=_validate(config, folder / "manifest.json"))


#: The only overrides of a resumed run, because a run directory may not choose them.
TYPED = ("encoder.model", "tracker.mode", "tracker.uri", "data.cache", "workers", "shard")


def refuse_overrides(manifest: dict[str, Any], overrides: Sequence[str]) -> None:
    """Raise ValueError for an override that would change the configuration of a resumed run."""
    for word in overrides:
        key, _, _ = word.lstrip("+~").partition("=")
        if key in TYPED:
            continue
        node: Any = manifest["config"]
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        began = f", which was begun with {key}={node}," if isinstance(node, str | int | float) else ""
        raise ValueError(
            f"`resume` takes the whole configuration of its run{began} and goes on with it; drop {word!r}, or start "
            "a new run"
        )


def refuse_program(run: Run, program: str | None, hint: str) -> None:
    """Raise ValueError for an encoder that runs code unless the user names it as `program`, with the `hint`."""
    if run.encoder.name not in PROGRAMS or run.encoder.model == program:
        return
    action = schema.PROGRAMS.get(run.encoder.name, "runs a program")
    raise ValueError(
        f"`encoder={run.encoder.name}` {action}, {run.encoder.model}, so a run directory may not choose it: "
        f"where you trust it, say {hint}" + (f"; got {program!r}" if program else "")
    )


#: In a run directory: the lock, which is empty and stays.
LOCK = ".lock"  # all processes of a run hold it together; one that begins or removes the run, alone


@dataclass(frozen=True)
class RunEntry:
    """A run directory that this process has entered. Where its `lock` is shared, other processes may join."""

    lock: Lock
    is_resumed: bool  # there is a run to go on with
    is_exclusive: bool  # no other process was at work on it


@contextmanager
def enter(
    out: Path, check_command: Callable[[dict[str, Any]], None], *, overwrite: bool = False
) -> Iterator[RunEntry]:
    """Within the block this process may work on the run directory, which is made where there is none. `check_command`
    gets the manifest of a run that is there and raises ValueError if it is another; with `overwrite` what that has
    written is removed first. Raises ValueError or OSError for a directory that it may not, or cannot, write to."""
    _check(out, check_command, overwrite)  # before a file is touched
    out.mkdir(parents=True, exist_ok=True)
    with Lock(out / LOCK) as lock:
        is_exclusive = lock.exclusive()
        if not is_exclusive:
            lock.shared()  # waits while a run begins
        has_run = _check(out, check_command, overwrite and is_exclusive)
        if is_exclusive:
            clean(out)
            if has_run and overwrite:
                remove(out)
                has_run = False
        elif overwrite or not has_run:
            raise ValueError(f"`{out}`: another process is at work there; wait for it or stop it, then start again")
        entry = RunEntry(lock, has_run, is_exclusive)
        if entry.is_resumed:
            print(f"note: {'going on with' if is_exclusive else 'joining'} the run in {out}", file=sys.stderr)
            inode = (out / "manifest.json").stat().st_ino
            lock.shared()
            if not (out / "manifest.json").exists() or (out / "manifest.json").stat().st_ino != inode:
                raise ValueError(f"`{out}`: another process has just overwritten this run; start again")
        yield entry


def _check(out: Path, check_command: Callable[[dict[str, Any]], None], overwrite: bool) -> bool:
    """Whether a directory that this process may enter holds a run; one with results only where it is to `overwrite`
    them. Raises ValueError for any other directory."""
    refuse_links(out)
    is_finished, is_begun = finished(out), (out / "manifest.json").exists()
    paths = out.iterdir() if out.is_dir() and not (is_finished or is_begun) else ()
    if names := [path.name for path in paths if path.name != LOCK and not is_left_over(path)]:
        raise ValueError(
            f"`hydra.run.dir` must be a new directory, or that of a run; {out} holds other files, such as "
            f"{short_path(min(names))}"
        )
    if is_finished and not overwrite:
        raise ValueError(
            f"`hydra.run.dir`: the run in {out} is finished, and its report is {out / 'report.html'}; name another "
            "directory, or remove this run with overwrite=true"
        )
    if is_begun and not overwrite:
        check_command(previous_run(out).manifest)
    return is_finished or is_begun


def remove(out: Path) -> None:
    """Remove what the run in a directory has written, as its manifest lists it, and nothing else. The result goes
    first, the partial results next, and the manifest stays until that of the next run replaces it: at any moment what
    is left is a run that can be gone on with."""
    files = artefact_paths(previous_run(out).manifest)
    (out / "metrics.json").unlink(missing_ok=True)
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
    for name in files:
        if name != "manifest.json":
            (out / name).unlink(missing_ok=True)
    for folder in sorted({parent for name in files for parent in Path(name).parents} - {Path()}, reverse=True):
        with suppress(OSError):  # it holds other files, or was never made
            (out / folder).rmdir()
