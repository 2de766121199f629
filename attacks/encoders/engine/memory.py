"""Free memory, and the memory that a view needs between its forward and its backward pass."""

import ctypes
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor, nn

# The numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
#: The heap is never trimmed, grows by 64 MiB at a time, and also holds what would be mapped on its own.
KEEP = {M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26, M_MMAP_MAX: 0}
#: Where glibc's own adaptation ends: blocks above 32 MiB mapped on their own, the heap trimmed above twice that.
GLIBC = {M_TRIM_THRESHOLD: 2**26, M_TOP_PAD: 2**17, M_MMAP_MAX: 2**16, M_MMAP_THRESHOLD: 2**25}


def keep_freed_memory(keep: bool = True) -> bool:
    """Let this process keep freed memory instead of returning it to the system; the peak does not change. With `keep`
    false, restore what glibc adapts itself to. Returns whether this worked; with another C library than glibc nothing
    happens."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    results = [mallopt(name, value) == 1 for name, value in (KEEP if keep else GLIBC).items()]
    return all(results)


#: Share of the free memory that a chunk may use; workspaces and other programs need the rest.
SHARE = 0.5


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Free bytes of `device`; on Linux at most what the control group allows. None where that is unknown. `root` is
    where /proc and /sys are mounted."""
    if device.type == "cuda":
        cache = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cache
    if device.type != "cpu":
        return None
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    """The free bytes of the machine, and of each control group (version 2) of this process."""
    with suppress(OSError, KeyError):
        yield _numbers(root / "proc/meminfo")["MemAvailable:"] * 1024
    paths: list[str] = []
    with suppress(OSError):
        paths = re.findall("^0::/(.*)", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
    for group in (group for path in paths for group in (Path(path), *Path(path).parents)):
        folder = root / "sys/fs/cgroup" / group
        with suppress(OSError, ValueError):  # a group without a limit has the word "max"
            limit, usage = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            yield max(0, limit - usage + _numbers(folder / "memory.stat").get("inactive_file", 0))


def _numbers(path: Path) -> dict[str, int]:
    """Name -> the number after it, of each line of a file of the kernel's."""
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


class SavedBytes:
    """Bytes that autograd saves in its largest pass, without weights, each storage counted once."""

    def __init__(self) -> None:
        self.largest = self._bytes = 0
        self._storages: set[int] = set()

    def begin(self) -> None:
        self._bytes = 0
        self._storages.clear()

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        base = tensor if tensor._base is None else tensor._base  # a linear layer saves its weight transposed
        if not isinstance(base, nn.Parameter) and storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self._bytes += storage.nbytes()
            self.largest = max(self.largest, self._bytes)
        return tensor


@contextmanager
def watch(device: torch.device) -> Iterator[SavedBytes]:
    """Measure the memory of the largest pass within; on CUDA, the peak of the allocator."""
    memory = SavedBytes()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        yield memory
        memory.largest = torch.cuda.max_memory_allocated(device) - start
        return
    with torch.autograd.graph.saved_tensors_hooks(memory.add, lambda tensor: tensor):
        yield memory


def most_rows(device: torch.device, row_bytes: float) -> int | None:
    """Most rows of a pass in which each needs `row_bytes`, at least 1; None where the free memory is unknown."""
    free = free_memory(device)
    return None if free is None else max(1, int(SHARE * free / max(row_bytes, 1)))


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: CUDA has an error class for it, other devices only a message."""
    words = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)
