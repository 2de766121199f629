"""Where the points of the unit cube come from. A draw is a pure function of (n, dims, seed, step)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


class Draws(Protocol):
    """`draws(n, dims, seed=, step=)` -> (n, dims) float32 on the CPU, in [0,1): the same call, the same points."""

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor: ...


def stream(seed: int, *purpose: object) -> int:
    """A 63-bit seed for one purpose of a run, so that the attack's draws and the evaluation's never coincide."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Sobol:
    """Owen-scrambled Sobol points: *one* sequence, of which step k takes the points k*n .. k*n + n - 1.

    So the points of all steps together are as even as those of one step (Sobol 1967; Owen 1995). Powers of two
    for n keep each step balanced.
    """

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        if dims == 0:
            return torch.zeros(n, 0)
        engine = SobolEngine(dims, scramble=True, seed=stream(seed, "sobol") % 2**31)
        if step:
            engine.fast_forward(n * step)
        return _below_one(engine.draw(n, dtype=torch.float64))


@dataclass(frozen=True)
class Uniform:
    """Independent uniform points, from a generator seeded by (seed, step)."""

    def __call__(self, n: int, dims: int, *, seed: int, step: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(stream(seed, "uniform", step))
        return torch.rand(n, dims, generator=generator)


@dataclass(frozen=True)
class Grid:
    """The midpoints of a regular grid with k points along each axis, n = k**dims; neither seed nor step matters."""

    def __call__(self, n: int, dims: int, *, seed: int = 0, step: int = 0) -> Tensor:  # noqa: ARG002
        k = round(n ** (1 / dims)) if dims else 1
        if k**dims != n:
            raise ValueError(
                f"`n` must be a whole number to the power {dims} (the dims) for a grid; got {n}, near {k**dims}"
            )
        axis = (torch.arange(k) + 0.5) / k
        return torch.cartesian_prod(*[axis] * dims).reshape(n, dims) if dims else torch.zeros(n, 0)


def _below_one(points: Tensor) -> Tensor:
    """float32 in [0,1): rounding must not reach 1."""
    return points.to(torch.float32).clamp(max=1 - 2**-24)
