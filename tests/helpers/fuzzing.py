"""Fuzzing with hypothesis: the number of cases in each profile, and the limits of a case.

`HYPOTHESIS_PROFILE=fuzz` makes new cases for minutes, within limits of time and memory, and keeps those that fail in
`.hypothesis`, which the next run tries first. Without it the cases are few, and always the same.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from scripts.benchmarks.memory import high_water

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
settings.register_profile("few", derandomize=True, database=None, deadline=None)
FAILED = DirectoryBasedExampleDatabase(Path(__file__).parents[2] / ".hypothesis" / "examples")
settings.register_profile("fuzz", print_blob=True, database=FAILED)
#: The number of cases, as a multiple of the slow suite's.
EFFORTS = {1: pytest.mark.slow, 50: pytest.mark.nightly}
every_effort = pytest.mark.parametrize("times", [pytest.param(times, marks=mark) for times, mark in EFFORTS.items()])


def hold(check, cases, examples, times=1, *, seconds=10, memory=2**30):
    """Run `check` on `examples * times` of the cases; when fuzzing on 250 times as many, each within `seconds`
    and `memory` bytes beyond what the process had before."""
    if not FUZZ:
        settings(settings.get_profile("few"), max_examples=examples * times)(given(cases)(check))()
        return

    def limited(case):
        with suppress(OSError):  # Linux: reset the peak
            Path("/proc/self/clear_refs").write_text("5")
        start = high_water()
        check(case)
        assert high_water() - start <= memory, f"needs {(high_water() - start) / 2**30:.1f} GiB of memory"

    limited.__module__ = check.__module__
    limited.__qualname__ = f"{check.__qualname__}.{examples}"  # its database key
    deadline = timedelta(seconds=seconds)
    profile = settings(settings.get_profile("fuzz"), max_examples=250 * examples * times, deadline=deadline)
    profile(given(cases)(limited))()


def one_line(error, *names):
    """Assert that an error's message is one line, and holds one of the names."""
    text = str(error)
    assert text.strip() and len(text.splitlines()) == 1, f"an error must be one line; got {text!r}"
    assert not names or any(name in text for name in names), f"an error must name {' or '.join(names)}; got {text!r}"
