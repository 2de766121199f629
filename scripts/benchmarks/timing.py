"""A stopwatch for a noisy machine: contestants take turns, and medians are compared."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import skimage.data
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.engine import keep_freed_memory

Result = TypeVar("Result")
Contestants = Mapping[str, Callable[[], object]]


def median_seconds(
    contestants: Contestants, rounds: int, device: str = "cpu", *, warm: bool = False
) -> dict[str, float]:
    """The median seconds of each, over rounds in which all take turns; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for i in range(rounds + 1):
        for name in random.Random(i).sample(names, len(names)):
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


def allocating(step: Callable[[], Result], keep: bool) -> Callable[[], Result]:
    """The step as in a run: ours keeps freed memory, that of a peer is left to glibc."""

    def run() -> Result:
        keep_freed_memory(keep)
        return step()

    return run


def astronaut(size: int) -> Tensor:
    """A square photograph, (1,3,size,size) in [0,1]."""
    image = torch.tensor(skimage.data.astronaut(), dtype=torch.float32).permute(2, 0, 1)[None] / 255
    return F.interpolate(image, (size, size), mode="bilinear", antialias=True)


def there_and_back(image: Tensor, views: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """The forward and the backward pass, down to the gradient of the one image."""

    def run() -> None:
        leaf = image.clone().requires_grad_()
        result = views(leaf)
        result.backward(torch.ones_like(result))

    return run
