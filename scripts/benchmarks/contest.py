"""What comparisons of attacks share: contestants and their settings, jobs in one or several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from attacks.runtime.progress import Progress

from .peers import installed

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")
#: `map`, or that of a pool of processes: outcomes come in the order of the jobs.
Spread = Callable[[Callable[[Job], Outcome], Sequence[Job]], Iterable[Outcome]]

OURS = "ours"


@dataclass(frozen=True)
class Setting:
    """What a user of a library sets: the `step` as a share of eps (of ART's patch: its learning rate), the `views` of
    a step, ART's `momentum` (its `decay`), and for patches the `loss`: "cosine", or "gallery", the cross-entropy."""

    step: float
    views: int
    momentum: float | None = None
    loss: str = ""

    def __str__(self) -> str:
        if self.loss:
            return f"step {self.step:g}, {self.views} views of each scene, {self.loss}"
        momentum = "" if self.momentum is None else f", momentum {self.momentum:g}"
        return f"step {self.step:.3g} eps, {self.views} views{momentum}"


@dataclass(frozen=True)
class Contestant:
    """An attack.

    Args:
        module: the module that it needs.
        run: (question, setting) -> the attacked pictures, or the texture, by the evaluations spent on each picture.
        default: its documented defaults, from (eps, evaluations).
        grid: the settings to choose from; ours has one rule, and nothing to choose.
    """

    module: str
    run: Callable[[Any, Setting], Mapping[int, Tensor]]
    default: Callable[[float, int], Setting]
    grid: tuple[Setting, ...] = ()


def entries(
    contestants: Mapping[str, Contestant], eps: float, evals: int, tuned: Callable[[str, Sequence[Setting]], Setting]
) -> tuple[dict[str, tuple[str, Setting]], dict[str, str]]:
    """Row of the table -> the contestant and its setting, by default and as `tuned` on its grid; and the contestants
    that are not installed."""
    here = {name: each for name, each in contestants.items() if installed(each.module)}
    rows = {name: (name, each.default(eps, evals)) for name, each in here.items()}
    for name, each in here.items():
        if grid := [setting for setting in each.grid if setting.views <= evals]:
            rows[f"{name}, tuned"] = name, tuned(name, grid)
    return rows, {name: "not installed" for name in contestants if name not in here}


@contextmanager
def processes(workers: int) -> Iterator[Spread[Any, Any]]:
    """`map` in so many processes of one thread each. Results do not depend on their number."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield pool.map


def done(
    name: str,
    work: Callable[[Job], Outcome],
    jobs: Sequence[Job],
    shown: Callable[[Outcome], dict[str, float]],
    spread: Spread[Job, Outcome] = map,
) -> list[Outcome]:
    """The outcomes of all jobs, with a progress bar that shows some figures of the last."""
    outcomes = []
    with Progress(name, len(jobs)) as progress:
        for outcome in spread(work, jobs):
            outcomes.append(outcome)
            progress.step(**shown(outcome))
    return outcomes
