"""A folder of evidence: written, and checked again."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attacks.evidence.facts import Facts, run_facts
from attacks.evidence.formats import cyclonedx, in_toto, junit, sarif
from attacks.evidence.lock import lock_date, lock_file
from attacks.evidence.page import evidence_page
from attacks.gate.policy import read_policy
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
POLICY, INDEX = "policy.yaml", "evidence.json"
#: Decides a policy on a finished run.
Decide = Callable[[Path], Verdict]


def write_evidence(out: Path, file: Path, name: str, runs: Sequence[Path], decide: Decide) -> Facts:
    """Write all pieces for the policy in `file`, which they call `name`, into the folder `out`, with copies of the
    policy and of its lock, and `evidence.json`: what they are made from, and their digests.

    Raises ValueError or OSError."""
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
    return facts


def check_evidence(out: Path, decide: Callable[[Path, Path], Verdict]) -> list[str]:
    """A line for each piece in the folder `out` that is not as the policy in it and the runs give it.

    Args:
        decide: decides the policy in a file on a finished run, whose files must have their digests.

    Raises ValueError or OSError where a run or the policy cannot be read, or the policy is not that of its lock.
    """
    index = read_untrusted(out / INDEX)
    runs, name = index.get("runs"), index.get("policy")
    if not (isinstance(runs, list) and runs and all(isinstance(run, str) for run in runs) and isinstance(name, str)):
        raise ValueError(f"`{out / INDEX}` must name the policy and the runs")
    with tempfile.TemporaryDirectory(dir=out.resolve().parent) as folder:  # so that relative paths are the same
        copy = Path(folder)
        folders = [out / run for run in runs]
        write_evidence(copy, out / POLICY, str(name), folders, lambda run: decide(out / POLICY, run))
        return list(_differences(out, copy))


def _differences(out: Path, copy: Path) -> Iterator[str]:
    names = {path.name for folder in (out, copy) for path in folder.iterdir()}
    for name in sorted(names):
        if not (out / name).is_file():
            yield f"{name}: it is missing"
        elif not (copy / name).is_file():
            yield f"{name}: it is no piece of this evidence"
        elif (out / name).read_bytes() != (copy / name).read_bytes():
            yield f"{name}: it is not what the policy and the runs give"
