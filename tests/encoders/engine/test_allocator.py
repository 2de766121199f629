"""Whether freed memory stays, by the pages that the system has to give again."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import resource, sys, torch
from attacks.encoders.engine import keep_freed_memory
torch.set_num_threads(1)
for keep in (False, True):
    assert keep_freed_memory(keep)
    faults = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(12 * 2**20) for _ in range(3)]  # 48 MiB each
        del parts
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(faults[-1])
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_freed_memory_stays_when_told_to():
    # In this order: what the heap holds by then may be below a block that lives on, and can't be given back.
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    given_back, kept = map(int, said.split())
    assert kept < 100 < given_back / 2


def test_elsewhere_nothing_happens(monkeypatch):
    from attacks.encoders.engine import keep_freed_memory

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
