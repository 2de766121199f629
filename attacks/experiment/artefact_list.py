"""files.json, the digests of what a run has written. metrics.json holds that of files.json, and files.json that of
metrics.json with zeros in its place, so that every byte of both is covered."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attacks.runtime.files import sha256, write_json
from attacks.runtime.untrusted import contents, parse_json, refuse_outside

SCHEMA = 1
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
    """Write files.json, and then metrics.json with its digest, which ends the run. Returns the digest."""
    content["files"] = ZEROS
    data = (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
    paths = (path for path in artefact_paths(manifest) if path not in (FILES, METRICS) and _plain(out / path))
    entries = {path: entry(out / path) for path in paths}
    entries[METRICS] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    write_json(out / FILES, {"schema": SCHEMA, "files": dict(sorted(entries.items()))})
    content["files"] = sha256(out / FILES)
    write_json(out / METRICS, content)
    return str(content["files"])


def entry(path: Path) -> dict[str, Any]:
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
        elif (today := entry(out / path)) != entries[path]:
            was = entries[path] if isinstance(entries[path], dict) else {}
            yield (
                f"{path}: its sha256 is {today['sha256'][:12]} of {today['size']} bytes, {FILES} recorded "
                f"{str(was.get('sha256'))[:12]} of {was.get('size')}"
            )
