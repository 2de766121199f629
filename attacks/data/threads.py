"""A pool of threads. Pillow and torch decode and resize without Python's lock."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")
#: Results in memory at a time.
SLAB = 64


def in_threads(function: Callable[[A], B], items: Sequence[A]) -> Iterator[B]:
    """`function` of each item, in their order, by as many threads as torch has. The first error is raised."""
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for start in range(0, len(items), SLAB):
            yield from pool.map(function, items[start : start + SLAB])
