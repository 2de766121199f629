"""Steps along a gradient that is estimated from losses alone (NES, Ilyas et al. 2018), in low frequencies."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Constraint, Done, Optimiser
from attacks.optimisers.gradient import MomentumState, check_step, decay
from attacks.schema.options import option


@dataclass(frozen=True)
class NES(Optimiser):
    r"""Momentum along a gradient estimated from losses, in low frequencies: no gradient is used.

    It takes the loss on both sides of delta along random smooth patterns, one view of each side. In few dimensions
    few losses say much, and an encoder sees mostly a picture's low frequencies (Guo et al. 2019).

    Formula: \frac{1}{q} \sum_{i=1}^{q} (\ell(\delta + \sigma d_i) - \ell(\delta - \sigma d_i)) \, d_i
    Use: an encoder that can only be asked and answers with numbers.
    Not: answers that only say same or not: `LabelOnly`.
    Cost: forward passes only, of each step as many as it has views; 25.3 bits of a hash after 1,000 queries, where
    the gradient changes 31.2 (docs/decisions.md).
    Oracle: the gradient in the low frequencies, tests/solvers/test_sampled.py.

    `probe` is how far each side is, as a share of the radius in its norm, of `L0` of the range of a value; an encoder
    that answers in steps, such as a hash, needs a long one. The patterns are sums of `keep` cosines along each axis,
    the same in all channels if `grey`. `rel_step_size` is the length of the first step as a share of eps, `momentum`
    that of the estimated gradients, `schedule` cosine, linear or constant. `surrogate` is an encoder with gradients:
    half of each direction's energy is then its gradient away from the picture's own embedding (P-RGF, Cheng et al.
    2019, with a fixed share); it costs no query.

    Examples:
        >>> from attacks import NES
        >>> patterns = NES(keep=4).directions(torch.zeros(1, 3, 16, 16), 5, torch.Generator().manual_seed(0))
        >>> patterns.shape, torch.allclose(patterns.flatten(1).norm(dim=1), torch.ones(5))
        (torch.Size([5, 3, 16, 16]), True)
        >>> torch.equal(patterns[:, 0], patterns[:, 2])  # grey
        True
    """

    gradient_free: ClassVar[bool] = True

    probe: float = option(
        2.0, "distance of the losses, as a share of eps", range="above 0", paper="Ilyas et al. 2018"
    )
    keep: int = option(8, "lowest frequencies along each axis", range="at least 1", paper="Guo et al. 2019")
    grey: bool = option(True, "the same pattern in all channels")
    rel_step_size: float = option(0.6, "first step as a share of eps", range="above 0")
    momentum: float = option(0.9, "of estimated gradients; 0: none", range="[0, 1)")
    schedule: str = option("cosine", "how the step shrinks", range="constant, cosine, linear")
    surrogate: Callable[..., Any] | None = option(
        None,
        "an encoder whose gradient leads the search: pocket, phash, or family:model such as timm:resnet18",
        paper="Cheng et al. 2019",
    )

    def __post_init__(self) -> None:
        check_step("rel_step_size", self.rel_step_size, self.schedule, momentum=self.momentum)
        if not (self.probe > 0 and math.isfinite(self.probe)):
            raise ValueError(f"`probe` must be a share of the radius, above 0; got {self.probe}")
        if type(self.keep) is not int or self.keep < 1:
            raise ValueError(f"`keep` must be a whole number of frequencies, at least 1; got {self.keep!r}")

    def directions(self, like: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Random patterns (count,C,H,W) for deltas `like` (N,C,H,W), each of length 1."""
        channels, height, width = like.shape[1:]
        rows, columns = dct_rows(min(self.keep, height), height), dct_rows(min(self.keep, width), width)
        size = (count, 1 if self.grey else channels, len(rows), len(columns))
        patterns = rows.mT @ torch.randn(size, generator=generator, dtype=torch.float64) @ columns
        flat = patterns.expand(-1, channels, -1, -1).flatten(1)
        return F.normalize(flat).view(count, channels, height, width).to(like)

    def mix(self, directions: Tensor, prior: Tensor) -> Tensor:
        """Directions (Q,...) and a gradient (n,...) of each delta -> directions (n,Q,...) of length 1."""
        shape = len(prior), *directions.shape
        prior_direction = F.normalize(prior.flatten(1))[:, None]
        return F.normalize(prior_direction + directions.flatten(1)[None], dim=2).view(shape)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> MomentumState:  # noqa: ARG002
        return MomentumState(torch.zeros_like(delta), reach)

    def step(
        self, delta: Tensor, estimate: Estimate, state: MomentumState, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, MomentumState]:
        """The next delta and state. Gradients are not normalised: one that is short says little."""
        momentum = self.momentum * state.momentum + estimate.grad
        length = self.rel_step_size * state.reach * decay(self.schedule, progress.before, delta)
        next_delta = constraint.step(delta, momentum, length)
        return next_delta, state._replace(momentum=momentum)


@dataclass(frozen=True)
class LabelOnly(NES):
    """NES for answers that only say same or not (encoder.answer=same).

    This is the label-only setting of Ilyas et al. 2018, section 3.4, in a set whose radius follows the answers.
    Arguments are those of `NES`; `surrogate` also makes the start, by an attack on it.

    Use: a service that only says whether two pictures are the same.
    Not: answers with numbers, which say more at each query: `NES`.
    Cost: forward passes only; of eight answers of a hash 0.75 change within 400 queries, with NES 0.12
    (docs/decisions.md).
    Oracle: the smallest change of an answer, tests/solvers/test_label_only.py.
    With: encoder=callable encoder.model=victim:enrolled encoder.answer=same

    Examples:
        >>> from attacks.optimisers import LabelOnly
        >>> [round(factor, 2) for factor in LabelOnly.factor(torch.tensor([0.0, 0.5, 1.0])).tolist()]
        [1.65, 1.0, 0.61]
    """

    leaves_early: ClassVar[bool] = False

    @staticmethod
    def factor(share: Tensor) -> Tensor:
        """By how much the radius (N,) changes where a share (N,) of a step's answers has changed: at one half, where
        an answer carries most information, it stays; above, it shrinks."""
        return (0.5 - share).exp()


@dataclass(frozen=True)
class NESSquare(NES):
    """NES for 0.3 of the queries (0.8 where answers are bits), then the Square attack from where it ends.

    Few queries lead far along a few smooth patterns; the windows then find what these cannot show, and no part of
    what was reached is given up. Most windows change no bit of a hash. Arguments are those of `NES`. The windows are
    those of `Square` with its defaults, after as many queries.

    Use: the default of an encoder that can only be asked and answers with numbers.
    Not: answers that only say same or not: `LabelOnly`.
    Source: Ilyas et al. 2018, then Andriushchenko et al. 2020; the order, and the share: docs/benchmarks.md.
    Cost: forward passes only, of each step as many as it has views; what it reaches: docs/benchmarks.md.
    Oracle: both phases' laws, tests/solvers/test_nes_square.py.

    Examples:
        >>> from attacks.optimisers import NESSquare
        >>> NESSquare().gradient_free, NESSquare().keep
        (True, 8)
    """


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def dct_rows(keep: int, size: int) -> Tensor:
    place, frequency = torch.arange(size, dtype=torch.float64) + 0.5, torch.arange(keep, dtype=torch.float64)
    rows = (math.pi / size * frequency[:, None] * place).cos() * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows
