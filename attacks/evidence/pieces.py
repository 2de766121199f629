"""A folder of evidence: written, and checked again; and the lock of a policy, a digest with a date beside it."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path

from attacks.evidence.facts import Facts, run_facts
from attacks.evidence.formats import cyclonedx, evidence_page, in_toto, junit, sarif
from attacks.gate.policy import POLICY, Policy, read_policy
from attacks.gate.verdict import Verdict
from attacks.runtime.files import make_folder, sha256, write_json, write_text
from attacks.runtime.untrusted import read_untrusted

#: The pieces by the names of their files.
PIECES: dict[str, Callable[[Facts], str]] = {
    "junit.xml": junit,
    "verdict.sarif": sarif,
    "encoder.cdx.json": cyclonedx,
    "test-result.intoto.json": in_toto,
    "evidence.html": evidence_page,
}
INDEX = "evidence.json"


def write_evidence(out: Path, file: Path, name: str, runs: Sequence[Path], decide: Callable[[Path], Verdict]) -> None:
    """Write all pieces for the policy in `file`, which they call `name`, into the folder `out`, with copies of the
    policy and of its lock, and `evidence.json`: what they are made from, and their digests. `decide` decides the
    policy on a run directory. Raises ValueError or OSError."""
    policy = read_policy(file)
    locked_on = lock_date(policy, file)
    facts = Facts(policy, name, locked_on, tuple(run_facts(decide(run), run) for run in runs))
    texts = {piece: make(facts) for piece, make in PIECES.items()}  # all of them before the first is written
    make_folder(out)
    if file.resolve() != (out / POLICY).resolve():
        write_text(out / POLICY, file.read_text(encoding="utf-8"))
        if locked_on is not None:
            write_text(lock_file(out / POLICY), lock_file(file).read_text(encoding="utf-8"))
    for piece, text in texts.items():
        write_text(out / piece, text)
    files = [POLICY, *([lock_file(Path(POLICY)).name] if locked_on is not None else []), *PIECES]
    index = {
        "policy": name,
        "locked": locked_on,
        "verdict": facts.verdict,
        "runs": [Path(os.path.relpath(run.resolve(), out.resolve())).as_posix() for run in runs],
        "viewproof": facts.version,
        "sha256": {file: sha256(out / file) for file in files},
    }
    write_json(out / INDEX, index)


def check_evidence(out: Path, decide: Callable[[Path, Path], Verdict]) -> list[str]:
    """A line for each piece in the folder `out` that is not as the policy in it and the runs give it. `decide`
    decides the policy in a file on a run directory, whose files must have their digests. Raises ValueError or
    OSError where a run or the policy cannot be read, or the policy is not that of its lock."""
    index = read_untrusted(out / INDEX)
    runs, name = index.get("runs"), index.get("policy")
    if not (isinstance(runs, list) and runs and all(isinstance(run, str) for run in runs) and isinstance(name, str)):
        raise ValueError(f"`{out / INDEX}` must name the policy and the runs")
    with tempfile.TemporaryDirectory(dir=out.resolve().parent) as folder:  # so that relative paths are the same
        folders = [out / run for run in runs]
        write_evidence(Path(folder), out / POLICY, name, folders, lambda run: decide(out / POLICY, run))
        return list(_differences(out, Path(folder)))


def _differences(out: Path, copy: Path) -> Iterator[str]:
    names = {path.name for folder in (out, copy) for path in folder.iterdir()}
    for name in sorted(names):
        if not (out / name).is_file():
            yield f"{name}: it is missing"
        elif not (copy / name).is_file():
            yield f"{name}: it is no piece of this evidence"
        elif (out / name).read_bytes() != (copy / name).read_bytes():
            yield f"{name}: it is not what the policy and the runs give"


def lock_file(policy: Path) -> Path:
    """The lock of a policy's file: policy.yaml has policy.lock.json."""
    return policy.with_suffix(".lock.json")


def lock(policy: Policy, file: Path) -> Path:
    """Write the lock of a policy. Raises ValueError where another one exists: a bar is fixed once."""
    path = lock_file(file)
    if path.exists():
        lock_date(policy, file)
        raise ValueError(f"`{path}` exists already, and matches; it is not written again, for it has the date")
    write_json(path, {"policy": file.name, "sha256": policy.digest, "date": date.today().isoformat()})
    return path


def lock_date(policy: Policy, file: Path) -> str | None:
    """The date of the lock beside a policy; None without one. Raises ValueError where the policy has changed."""
    path = lock_file(file)
    if not path.exists():
        return None
    content = read_untrusted(path)
    try:
        day = date.fromisoformat(str(content.get("date"))).isoformat()
    except ValueError:
        raise ValueError(f"`{path}` has no date such as 2026-11-24; got {json.dumps(content.get('date'))}") from None
    if content.get("sha256") != policy.digest:
        raise ValueError(
            f"`{file}` is not the policy that was locked on {day}: its SHA-256 is {policy.digest[:12]}, the lock has "
            f"{str(content.get('sha256'))[:12]}. Restore it, or give the new policy another name"
        )
    return day
