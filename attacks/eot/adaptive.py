"""How many views a step takes, picture by picture, from the noise of its gradients: the norm test of adaptive-batch
SGD (Byrd et al. 2012). The gradient of n views has the cosine sqrt(n / (n + c)) to the true one, where c is the noise
of a single view as a multiple of the signal."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.runtime.values import stored

#: The weight of the noise measured before, when a step adds its own; and the steps that measure it before it counts.
MEMORY, PILOT = 0.9, 8
#: The largest snr: equal views have an infinite one, whose share of the power, inf / inf, is no number.
MAX_SNR = 1e300


@stored("noise")
class Noise(NamedTuple):
    """Of each delta (D,), summed over the steps with fading weights: the share of `signal` in its gradient's power,
    and the `spread` of a single view's gradient on that scale; and the number of `steps` (D,) that showed them."""

    signal: Tensor
    spread: Tensor
    steps: Tensor

    @property
    def c(self) -> Tensor:
        """The noise of a single view's gradient as a multiple of the signal; NaN before it has been measured."""
        return self.spread / self.signal

    def update(self, estimate: Estimate) -> "Noise":
        """With the estimate of one more step. A single view shows no noise, and changes nothing."""
        snr = estimate.snr.double().cpu().clamp(max=MAX_SNR)
        finite = ~snr.isnan()
        signal = torch.where(finite, snr / (1 + snr), 0)
        spread = torch.where(finite, estimate.views.cpu() / (1 + snr), 0)
        keep = torch.where(finite, MEMORY, 1.0)
        return Noise(keep * self.signal + signal, keep * self.spread + spread, self.steps + finite)


@dataclass(frozen=True)
class Adaptive:
    """Chooses the views of each step. A picture whose gradients suffice for `steps` steps of several views takes as
    many views as its constant c, in blocks, a power of two of them; at most so many that these steps remain.

    Examples:
        >>> from attacks.eot import Adaptive
        >>> Adaptive(steps=128).start(torch.tensor([128, 4096]), block=4).tolist()  # gradients of two pictures
        [1, 2]
    """

    steps: int = 128

    def __post_init__(self) -> None:
        if type(self.steps) is not int or self.steps < 1:
            raise ValueError(f"`steps` must be a whole number, at least 1; got {self.steps!r}")

    def start(self, total: Tensor, block: int) -> Tensor:
        """Blocks of the first steps (N,), of `total` gradients (N,): two where possible, so that the noise shows."""
        return self._limit(total, block).clamp(max=2)

    def next_blocks(self, noise: Noise, total: Tensor, left: Tensor, block: int) -> Tensor:
        """Blocks of the next step (N,) of pictures that have `left` of `total` gradients (N,)."""
        c = noise.c.nan_to_num(0.0).expand(len(total))
        blocks = _power(torch.minimum(c / block, self._limit(total, block)))
        blocks = torch.where(noise.steps < PILOT, self.start(total, block), blocks)
        return torch.minimum(blocks, (left // block).clamp(min=1))

    def _limit(self, total: Tensor, block: int) -> Tensor:
        return _power(total / (self.steps * block))


def _power(share: Tensor) -> Tensor:
    """The largest power of two up to `share`, at least 1."""
    return (2 ** share.double().clamp(min=1).log2().floor()).long()
