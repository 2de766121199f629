"""Work in other processes: shared out among several, or alone in a fresh one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")
#: `map`, or that of a pool of processes: outcomes come in the order of the jobs.
Map = Callable[[Callable[[Job], Outcome], Sequence[Job]], Iterable[Outcome]]


@contextmanager
def spread_over(workers: int) -> Iterator[Map[Any, Any]]:
    """`map` in so many processes of one thread each. Results do not depend on their number."""
    if workers == 1:
        yield map
        return
    with _pool(workers, 1) as pool:
        yield pool.map


def in_fresh_process(work: Callable[..., Outcome], *arguments: object) -> Outcome:
    """`work(*arguments)` in a process of its own, with as many threads as this one."""
    with _pool(1, torch.get_num_threads()) as pool:
        return pool.submit(work, *arguments).result()


def _pool(workers: int, threads: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (threads,))
