"""Where the points of the unit cube come from. A draw is a pure function of (n, dims, seed, step)."""

import hashlib
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


class Draws(Protocol):
    """`draws(n, dims, seed=, step=)` -> (n, dims) float32 on the CPU, in [0,1): the same call, the same points.

    Examples:
        >>> from transforms.draws import Draws, Uniform
        >>> draws: Draws = Uniform()
        >>> torch.equal(draws(4, 2, seed=0, step=3), draws(4, 2, seed=0, step=3))
        True
        >>> torch.equal(draws(4, 2, seed=0, step=3), draws(4, 2, seed=0, step=4))
        False
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor: ...


def stream(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose of a run, so that the attack's draws and the evaluation's never coincide.

    Examples:
        >>> from transforms.draws import stream
        >>> stream(0, "attack") == stream(0, "attack"), stream(0, "attack") == stream(0, "evaluate")
        (True, False)
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Sobol:
    """Owen-scrambled Sobol points: *one* sequence, of which step k takes the points k*n .. k*n + n - 1.

    So the points of all steps together are as even as those of one step (Sobol 1967; Owen 1995). Powers of two for n
    keep each step balanced.

    Use: the default: the views of all steps together are even.
    Not: a test that needs independent views: `Uniform`.
    Oracle: torch's engine point by point, one point in each stratum, tests/transforms/draws/test_samplers.py.

    Examples:
        >>> from transforms import Sobol
        >>> first, second = (Sobol()(4, 2, seed=0, step=step) for step in (0, 1))
        >>> (8 * torch.cat([first, second])).floor().sort(0).values[:, 0].tolist()  # each eighth holds one point
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        if dims == 0:
            return torch.zeros(n, 0)
        engine = copy(_scrambled(dims, stream(seed, "sobol") % 2**31))
        engine.quasi = engine.quasi.clone()  # drawing changes it in place
        if step:
            _jump(engine, n * step)
        points = engine.draw(n, dtype=torch.float64).to(torch.float32)
        return points.clamp(max=1 - 2**-24)  # rounding must not reach 1


@dataclass(frozen=True)
class Uniform:
    """Independent uniform points, from a generator seeded by (seed, step).

    Use: independent views, as theory assumes them.
    Not: few gradients: it needs more views than `Sobol` for the same noise.
    Source: Monte Carlo.
    Oracle: uniform moments, tests/transforms/draws/test_samplers.py.

    Examples:
        >>> from transforms.draws import Uniform
        >>> points = Uniform()(1000, 2, seed=0)
        >>> points.shape, bool((points >= 0).all() and (points < 1).all())
        (torch.Size([1000, 2]), True)
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        return torch.rand(n, dims, generator=_generator(seed, "uniform", step))


@dataclass(frozen=True)
class Antithetic:
    """Independent uniform points and their mirror images, u0, 1 - u0, u1, 1 - u1, ... (Hammersley & Morton 1956).

    What is odd about the centre of the cube cancels within a pair, exactly. An odd n leaves the last point alone.

    Use: a gradient that is odd about the middle of the ranges, of which pairs cancel the noise.
    Not: an odd number of views.
    Oracle: the mirror of each point, tests/transforms/draws/test_samplers.py.

    Examples:
        >>> from transforms.draws import Antithetic
        >>> points = Antithetic()(4, 3, seed=0)
        >>> torch.equal(points[::2] + points[1::2], torch.ones(2, 3))
        True
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        # Odd multiples of 2**-24: their mirrors are odd multiples too, exact in float32, and neither reaches 0 or 1.
        draws = torch.randint(2**23, (-(-n // 2), dims), generator=_generator(seed, "antithetic", step))
        points = (2 * draws + 1).to(torch.float32) * 2**-24
        return torch.stack([points, 1 - points], dim=1).flatten(0, 1)[:n]


@dataclass(frozen=True)
class Latin:
    """Latin hypercube (McKay, Beckman & Conover 1979): along each coordinate, every one of n equal strata holds one
    point, somewhere in it.

    The order of the strata is random, and independent of that along other coordinates. The mean of a sum of functions
    of one coordinate each has a far smaller variance than over independent points (Stein 1987). Steps are independent
    of each other.

    Use: steps that have to see each slice of each coordinate as often, such as the copies of `transforms=si`.
    Not: steps of one or two views.
    Oracle: one point in each stratum, tests/transforms/draws/test_samplers.py.

    Examples:
        >>> from transforms.draws import Latin
        >>> points = Latin()(4, 2, seed=0)
        >>> (4 * points).floor().sort(0).values.tolist()  # each quarter holds one point, along each coordinate
        [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        generator = _generator(seed, "latin", step)
        strata = torch.rand(n, dims, generator=generator, dtype=torch.float64).argsort(0)
        exact = (strata + torch.rand(n, dims, generator=generator, dtype=torch.float64)) / n
        points = exact.to(torch.float32)
        rounded = (points.double() * n).floor()  # this product is exact
        # Rounding may have crossed the edge of a stratum.
        points = torch.where(rounded > strata, points.nextafter(torch.tensor(0.0)), points)
        return torch.where(rounded < strata, points.nextafter(torch.tensor(1.0)), points)


@dataclass(frozen=True)
class Fixed:
    """The same points at every step, those of the first step of `Sobol`: a bank of views that is never drawn anew.

    An attack has no noise, and may fit the bank.

    Use: a loss without noise, such as for `APGD`.
    Not: few views, to which the attack is fitted.
    Source: the sample average.
    Oracle: the points of one step, tests/transforms/draws/test_samplers.py.

    Examples:
        >>> from transforms.draws import Fixed, Sobol
        >>> torch.equal(Fixed()(4, 2, seed=0, step=7), Sobol()(4, 2, seed=0, step=0))
        True
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:  # noqa: ARG002
        return Sobol()(n, dims, seed=seed)


@dataclass(frozen=True)
class Grid:
    """The midpoints of a regular grid with k points along each axis, n = k**dims; neither seed nor step matters.

    Use: a map over one or two coordinates.
    Not: an attack, unless its views have few coordinates: it takes k^dims views.
    Source: the midpoints of equal cells.
    Oracle: the midpoints, tests/transforms/draws/test_samplers.py.
    With: transforms=identity

    Examples:
        >>> from transforms.draws import Grid
        >>> Grid()(4, 2).tolist()
        [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    """

    def __call__(self, n: int, dims: int, *, seed: int = 0, step: int = 0) -> Tensor:  # noqa: ARG002
        k = round(n ** (1 / dims)) if dims else 1
        if k**dims != n:
            raise ValueError(
                f"`n` must be a whole number to the power {dims} (the dims) for a grid; got {n}, near {k**dims}"
            )
        axis = (torch.arange(k) + 0.5) / k
        return torch.cartesian_prod(*[axis] * dims).reshape(n, dims) if dims else torch.zeros(n, 0)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _scrambled(dims: int, seed: int) -> SobolEngine:
    """A new engine, not to be drawn from: to scramble takes longer than to draw a few points."""
    return SobolEngine(dims, scramble=True, seed=seed)


def _generator(seed: int, name: str, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream(seed, name, step))


def _jump(engine: SobolEngine, count: int) -> None:
    """What `engine.fast_forward(count)` does to a new engine, at once: that takes every point in turn. Point i is the
    exclusive or of the direction numbers at the ones of the Gray code of i (Antonov & Saleev 1979)."""
    place = count - 1
    gray = place ^ (place >> 1)
    for bit in range(gray.bit_length()):
        if gray >> bit & 1:
            engine.quasi ^= engine.sobolstate[:, bit]
    engine.num_generated = count
