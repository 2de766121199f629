"""Memory and time against the number of views: memory should be constant, time proportional."""

import ctypes
import gc
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from .case import case
from .table import BenchmarkTable, Row
from .timing import median_seconds

VIEWS = tuple(2**k for k in range(3, 11))
CHUNK = 8
MIB = 2**20


def run(
    rounds: int = 5, arch: Sequence[str] = ("pocket",), device: str = "cpu", views: Sequence[int] = VIEWS
) -> list[BenchmarkTable]:
    """Memory and time of a step against the number of views."""
    rows: dict[str, Row] = {}
    for name in arch:
        question = case(name, max(views), device)
        steps = {str(n): partial(question.estimate, question.frozen, CHUNK, n) for n in views}
        peaks = (tensor_peak(step, device) / MIB for step in steps.values())
        seconds = median_seconds(steps, rounds, device)
        fixed, slope = straight_line(views, [*seconds.values()])
        rows[name] = (*peaks, 1e3 * slope, fixed / (fixed + slope * views[0]))
    title = f"Peak of the tensors of one step by number of views, {CHUNK} at a time, on {device} (MiB)"
    columns = dict.fromkeys(map(str, views), ".1f") | {"ms a view": ".3f", f"fixed part of {views[0]} views": ".1%"}
    return [BenchmarkTable(title, columns, rows)]


def straight_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The a and b that minimise the mean square of (y - a - b x) / y: noise of a time grows with the time."""
    at, values = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    a, b = torch.linalg.lstsq(torch.stack([1 / values, at / values], -1), torch.ones_like(values)).solution.tolist()
    return a, b


def peak(work: Callable[[], object], device: str) -> int:
    """Bytes that `work` needs at its worst, beyond what was held before: of the device, or of the process. What an
    allocator keeps for later use counts as held, so measure in a fresh process, before any other work."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        start_bytes = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - start_bytes
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc: what the start has freed goes back to the system
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # on Linux `high_water` starts afresh from what is held
        Path("/proc/self/clear_refs").write_text("5")
    start_bytes = high_water()
    work()
    return high_water() - start_bytes


def tensor_peak(work: Callable[[], object], device: str) -> int:
    """Bytes of the tensors that live at once during `work`, at most, whatever the allocator keeps beside them."""
    if torch.device(device).type == "cuda":
        return peak(work, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # else the profiler writes of the GPUs that it misses
    activities = [torch.profiler.ProfilerActivity.CPU]
    # `acc_events`: else torch 2.10 warns that it forgets the events of earlier cycles, of which there are none.
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))))


def high_water() -> int:
    """The most bytes that the process has held. `ru_maxrss` comes second: it begins with the peak of the parent."""
    with suppress(OSError):
        if match := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return 1024 * int(match.group(1))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
