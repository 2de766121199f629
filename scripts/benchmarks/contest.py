"""What comparisons with peers share: contestants and their settings, counts of gradients, and processes."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")
#: `map`, or that of a pool of processes: outcomes come in the order of the jobs.
Map = Callable[[Callable[[Job], Outcome], Sequence[Job]], Iterable[Outcome]]
#: The attack of a contestant, ready to be run: the gradient, or the attacked pictures.
Attack = Callable[[], Tensor]

OURS = "ours"


@dataclass(frozen=True)
class Setting:
    """What a user of a library sets: the `step` as a share of eps (0: the attack finds its own), the `views` of a
    step, the `momentum`. With the `schedule` "cosine" the step falls to zero. To `keep` the "best" is to return the
    iterate with the lowest loss on its own views; else it is the last. The `size` of the patterns that a search
    moves is its own (0: it has none)."""

    step: float
    views: int
    momentum: float | None = None
    schedule: str = ""
    keep: str = ""
    size: float = 0.0

    def __str__(self) -> str:
        step = f"step {self.step:.3g} eps" if self.step else ""
        momentum = "" if self.momentum is None else f"momentum {self.momentum:g}"
        size = f"size {self.size:g}" if self.size else ""
        return ", ".join(filter(None, [step, self.schedule, f"{self.views} views", momentum, self.keep, size]))


@dataclass(frozen=True)
class Contestant:
    """An attack that is compared, by the module that it needs: `prepare` makes it of (task, setting), and of the
    settings of its `grid` a comparison chooses the best."""

    module: str
    prepare: Callable[[Any, Setting], Attack]
    grid: tuple[Setting, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether its module can be imported; one with requirements that do not fit counts as missing."""
        try:
            importlib.import_module(self.module)
        except ImportError:
            return False
        return True


class Counting(nn.Module):
    """An encoder that counts the views it is shown, and those that a gradient has come back through."""

    def __init__(self, encoder: Callable[..., Any]) -> None:
        super().__init__()
        self.encoder, self.forwards, self.gradients = encoder, 0, 0

    def forward(self, views: Tensor) -> Tensor:
        self.forwards += len(views)
        embedding: Tensor = self.encoder(views)
        if embedding.requires_grad:
            embedding.register_hook(self._back)
        return embedding

    def _back(self, grad: Tensor) -> None:
        self.gradients += len(grad)


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
