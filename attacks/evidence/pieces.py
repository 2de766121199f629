"""A folder of evidence: written, and checked again."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attacks.evidence.custody import policy_origin
from attacks.evidence.facts import Facts, run_facts
from attacks.evidence.formats import cyclonedx, evidence_page, in_toto, junit, sarif
from attacks.evidence.witness import stamp_files
from attacks.gate.lock import lock_file
from attacks.gate.policy import POLICY
from attacks.gate.verdict import Verdict
from attacks.runtime.files import make_folder, sha256, write_bytes, write_json, write_text
from attacks.runtime.untrusted import contents, read_untrusted

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
    origin = policy_origin(file)
    results = tuple(run_facts(decide(run), run, origin) for run in runs)
    is_fixed = all(result.custody.is_fixed for result in results)
    facts = Facts(origin.policy, name, origin.lock.date if origin.lock and is_fixed else None, results)
    texts = {piece: make(facts) for piece, make in PIECES.items()}  # all of them before the first is written
    make_folder(out)
    copies = []
    for copy, path in zip((out / name for name in _files(Path(POLICY))), _files(file), strict=True):
        if not path.exists():
            copy.unlink(missing_ok=True)  # of an earlier policy
            continue
        copies.append(copy)
        if not (copy.exists() and copy.samefile(path)):
            write_bytes(copy, contents(path))
    for piece, text in texts.items():
        write_text(out / piece, text)
    index = {
        "policy": name,
        "problems": [run.custody.problems for run in facts.runs],
        "verdict": facts.verdict,
        "runs": [Path(os.path.relpath(run.resolve(), out.resolve())).as_posix() for run in runs],
        "viewproof": facts.version,
        "sha256": {file: sha256(out / file) for file in [*(path.name for path in copies), *PIECES]},
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


def _files(policy: Path) -> tuple[Path, ...]:
    """A policy's file, its lock, its timestamp and the certificates of that, some of which may not be there."""
    return (policy, lock_file(policy), *stamp_files(policy))
