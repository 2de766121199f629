"""A run that fails or dies at any operation on its files, resumed, ends with the bytes of an uninterrupted one."""

import errno
import hashlib
import shutil
from pathlib import Path

import pytest

from tests.helpers.crashes import fail, limit
from tests.helpers.processes import facts
from tests.helpers.sampling import mostly_nightly

PARTS = range(10)
CHANGES = ("open", "fsync", "rename", "remove", "mkdir", "rmdir")
#: Name -> the shim and what it is given behind the number of the operation, and the operations that it counts.
FAULTS = {
    "once": (fail, (errno.ENOSPC, CHANGES, False), CHANGES),
    "full": (fail, (errno.ENOSPC, ("open", "fsync", "mkdir"), True), ("open", "fsync", "mkdir")),
    "denied": (fail, (errno.EACCES, ("remove", "rmdir"), False), ("remove", "rmdir")),
    "short": (limit, (100,), ("open",)),
}


def distinct(folders):
    """One folder of each content."""
    by_digest = {}
    for folder in sorted(folders):
        digest = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            digest.update(f"{path.relative_to(folder)}\n".encode() + (path.read_bytes() if path.is_file() else b""))
        by_digest.setdefault(digest.digest(), folder)
    return list(by_digest.values())


def trouble(nursery, folder, begin, expected):
    """What is wrong with a crashed run, begun with `begin`, after it was resumed; nothing if it is as `expected`."""
    finished = (folder / "metrics.json").exists()
    code, text = nursery.run([f"resume={folder}"] if (folder / "manifest.json").exists() else begin)
    if code != int(finished) or "Traceback" in text:
        return f"{folder.name}: exit {code}: {text[-2000:]}"
    figures = facts(folder)
    wrong = [name for name in {**figures, **expected} if figures.get(name) != expected.get(name)]
    wrong += [str(path) for path in folder.rglob("*.tmp")]
    wrong += [] if finished else [str(path) for path in folder.glob("checkpoint")]  # a refused run is as it was
    wrong += [] if (folder / "report.html").exists() else ["report.html"]  # metrics.json, by which it counts, is last
    return f"{folder.name}: {wrong}" if wrong else None


CRASHES = [
    (v, mode, part) for v in ("pictures", "patch") for mode in ("kill", "half", "torn", "power") for part in PARTS
]
LONG = [pytest.param(("parts", "kill", part), marks=pytest.mark.nightly) for part in PARTS]


@pytest.mark.parametrize("case", [*mostly_nightly(CRASHES, len(PARTS)), *LONG], ids=str)
def test_a_crash_before_any_operation_keeps_the_results(nursery, start, recording, top, case):
    """Modes: killed; killed in a write that is half done, or has not begun; a power cut in which the entries of all
    folders survive, but no bytes that were not synced; and one in which neither does."""
    variant, mode, part = case
    expected, crashes = recording(variant)
    distinct_crashes = distinct((crashes / mode).iterdir())
    assert len(distinct_crashes) > 10
    wrong = []
    for crash in distinct_crashes[part :: len(PARTS)]:
        folder = Path(shutil.copytree(crash, top / f"{variant}-{mode}-{crash.name}"))
        wrong.append(trouble(nursery, folder, start(folder, variant), expected))
        shutil.rmtree(folder)
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.nightly
@pytest.mark.parametrize("case", [(name, part) for name in FAULTS for part in PARTS], ids=str)
def test_an_operation_that_fails_is_one_line_and_the_run_can_be_resumed(nursery, start, recording, top, case):
    """Faults: the disk is full for one operation, or from it on; nothing may be removed; a write stops halfway."""
    name, part = case
    expected, crashes = recording("pictures")
    shim, arguments, kinds = FAULTS[name]
    count = sum(path.name.split("-")[1] in kinds for path in (crashes / "kill").iterdir())
    wrong = []
    for at in range(1 + part, 2 + count, len(PARTS)):
        folder = top / f"{name}-{at}"
        code, text = nursery.run(start(folder), shim, folder, at, *arguments)
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        if "Traceback" in text or (code, len(errors)) not in ((0, 0), (1, 1)):
            wrong.append(f"{folder.name}: exit {code}: {text[-2000:]}")
        elif code == 0 and facts(folder) != expected:
            wrong.append(f"{folder.name}: ends well with other bytes")
        elif code == 1:
            wrong.append(trouble(nursery, folder, start(folder), expected))
        shutil.rmtree(folder, ignore_errors=True)
    assert not any(wrong), "\n".join(filter(None, wrong))
