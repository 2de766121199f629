"""A stopwatch for a noisy machine: contestants take turns, and medians are compared."""

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.gallery import photographs


def median_seconds(
    contestants: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu", *, warm: bool = False
) -> dict[str, float]:
    """The median seconds of each, over rounds in which all take turns; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name in random.Random(i).sample([*contestants], len(contestants)):
            if warm:
                contestants[name]()
            wait(device)
            began = time.perf_counter()
            contestants[name]()
            wait(device)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def wait(device: str) -> None:
    """Wait until the device has finished: a GPU works on while Python goes on."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def astronaut(size: int) -> Tensor:
    """A square photograph, (1,3,size,size) in [0,1]."""
    return F.interpolate(photographs()["astronaut"][None], (size, size), mode="bilinear", antialias=True)
