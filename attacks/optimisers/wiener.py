"""Projected gradient descent along the filtered mean of all gradients of a run."""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Constraint, Done, Optimiser
from attacks.optimisers.gradient import check_step, decay, l1_norm
from attacks.runtime.blocks import VALUES
from attacks.runtime.values import stored
from attacks.schema.options import option
from transforms.devices import uploaded

#: Rings of the frequency plane that share one gain, at most; and the least gain of a ring, as a share of the highest:
#: two steps agree less where the loss is curved, too. An encoder sees no more frequencies of a larger picture, so the
#: share falls with the side above SIDE pixels.
RINGS, MIN_GAIN, SIDE = 24, 0.1, 256
#: In a run of fewer than SHORT steps they are longer, by SHORT / steps, but at most LONGEST times: they could not go
#: far enough.
SHORT, LONGEST = 34, 3


@stored("wiener_half")
class Half(NamedTuple):
    """The sum of the gradients of half of the steps: its `spectrum` (N,C,H,W',2) by `rfft2`, real and imaginary
    parts, and the energy of each ring of frequencies (N,R), over all channels."""

    spectrum: Tensor
    energy: Tensor


@stored("wiener")
class WienerState(NamedTuple):
    """The weighted sums of the gradients of both halves of the steps, which values have had a gradient other than 0
    (like delta), the `point` that delta looks ahead from, the number of steps, and the length of the first."""

    first_half: Half
    second_half: Half
    active: Tensor
    point: Tensor
    step: int
    length: float


@dataclass(frozen=True)
class Wiener(Optimiser):
    """PGD along the mean gradient of the run, noise filtered frequency by frequency.

    Gradients are normalised per image to L1 norm 1, and that of step k, counted from 1, has the weight k (as in the
    averaging of Shamir & Zhang 2013). The sum is kept as two halves. What both have in common is signal, the rest is
    noise (the Fourier ring correlation of microscopy, Saxton & Baumeister 1982), and `wiener_filter` gives each
    frequency the gain of Wiener's filter. This assumes that the halves measure one thing. But gradients drift along a
    run, and descent that overshoots turns them with period 2; so the Thue-Morse sequence, the parity of the bits of
    k, deals out the steps: the weighted halves of 2^n steps differ by no polynomial trend below degree n - 1, and by
    none below degree n - 2 times (-1)^k.

    The estimate is taken at a look-ahead point, once more along the last move (Lin et al. 2020): delta is this point,
    which lies in the set, and after the last step it is the point itself.

    Use: the default: every step sees other views, and so its gradient is noisy.
    Not: steps without noise, of which nothing is to be filtered: `draws=fixed`, or views without coordinates.
    Source: weights: Shamir & Zhang 2013; gradients of norm 1: Dong et al. 2018; halves and rings: Saxton & Baumeister
    1982; gain: Wiener 1949; one step ahead: Lin et al. 2020; their combination, and the constants: docs/decisions.md.
    Cost: one gradient for each view of a step, and of each channel two Fourier transforms a step; a step at 4000 x
    3000 pixels took 3.04 s where PGD took 0.61 s (docs/decisions.md); in float32, as now, it takes 0.6 of that.
    Oracle: the filter of the full transform, plain descent without noise, tests/optimisers/test_wiener.py.

    `rel_step_size` is the length of the first step as a share of eps, in the perturbation's norm, up to three times
    as long in a run of fewer than 34 steps; `schedule` is cosine or linear (to zero over the run), or constant.

    Examples:
        >>> from attacks import EOT, Linf, Toward, Wiener, attack
        >>> parts = {"encoder": torch.nn.Flatten().eval(), "objective": Toward("l2"), "eot": EOT()}
        >>> parts |= {"perturbation": Linf(8 / 255, random_start=False), "optimiser": Wiener(0.05, "constant")}
        >>> run = attack(torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, 192), **parts, steps=4)
        >>> [round(255 * float(step.delta.mean()), 2) for step in run]  # one step ahead, but for the last
        [-2.4, -3.6, -4.8, -4.8]
    """

    rel_step_size: float = option(
        0.8,
        "first step as a share of eps; more in runs of fewer than 34 steps",
        range="above 0",
        paper="this project's own: [decisions](decisions.md#the-attack)",
    )
    schedule: str = option("cosine", "how the step shrinks", range="constant, cosine, linear")

    def __post_init__(self) -> None:
        check_step("rel_step_size", self.rel_step_size, self.schedule)

    def init(self, delta: Tensor, *, reach: float, steps: int) -> WienerState:
        height, width = delta.shape[2:]
        dtype = torch.promote_types(delta.dtype, torch.float32)
        spectrum = delta.new_zeros(*delta.shape[:3], width // 2 + 1, 2, dtype=dtype)
        rings = rings_of(height, width, delta.device)
        empty = Half(spectrum, spectrum.new_zeros(len(delta), len(rings.sizes)))
        longer = min(LONGEST, max(1, SHORT / steps))
        static = torch.zeros_like(delta, dtype=torch.bool)
        return WienerState(empty, empty, static, delta, 0, self.rel_step_size * longer * reach)

    def step(
        self, delta: Tensor, estimate: Estimate, state: WienerState, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, WienerState]:
        grad = estimate.grad
        first_half, second_half = state.first_half, state.second_half
        if state.step.bit_count() % 2:
            second_half = add_gradient(second_half, grad, state.step + 1)
        else:
            first_half = add_gradient(first_half, grad, state.step + 1)
        active = state.active | (grad != 0)
        direction = wiener_filter(first_half, second_half, delta).masked_fill_(~active, 0)
        length = state.length * decay(self.schedule, progress.before, delta)
        move = constraint.steepest(direction, length, state.point)
        point = constraint.project(state.point, move)
        goes_on = progress.after < 1
        if not bool(goes_on.all()):
            move = torch.where(uploaded(goes_on, delta.device)[:, None, None, None], move, 0)
        next_delta = constraint.project(point, move)
        return next_delta, WienerState(first_half, second_half, active, point, state.step + 1, state.length)


def add_gradient(half: Half, grad: Tensor, weight: float) -> Half:
    """The sum with a gradient (N,C,H,W), normalised to L1 norm 1, times its `weight`."""
    dtype = half.spectrum.dtype
    share = grad.to(dtype) / l1_norm(grad, dtype)
    spectrum = half.spectrum.add(torch.view_as_real(torch.fft.rfft2(share)), alpha=weight)
    rings = rings_of(*grad.shape[2:], grad.device)
    return Half(spectrum, rings.sums(spectrum, spectrum))


def wiener_filter(first_half: Half, second_half: Half, like: Tensor) -> Tensor:
    """The sum of two noisy measurements of the same pictures, each frequency times the share of it that is signal: S
    / (S + N) (Wiener 1949), which is 2 r / (1 + r) of the correlation r of the two in a ring of frequencies, over all
    channels. In the type and of the size of `like` (N,C,H,W)."""
    height, width = like.shape[2:]
    rings = rings_of(height, width, like.device)
    pair = (first_half.energy * second_half.energy).sqrt()
    r = torch.where(pair > 0, rings.sums(first_half.spectrum, second_half.spectrum) / pair, 0).clamp(0, 1)
    gain = 2 * r / (1 + r)
    highest = gain.amax(1, keepdim=True)
    low = MIN_GAIN * min(1, SIDE / math.sqrt(height * width))
    gain = torch.where(highest > 0, torch.maximum(gain, low * highest), 1)[:, None, rings.of]
    spectrum = torch.view_as_complex(first_half.spectrum + second_half.spectrum).mul_(gain)
    total: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return total.to(like)


SUM = partial(torch.sum, dim=1)


class Rings(NamedTuple):
    """The rings of the frequencies (H,W') of `rfft2`: `of`, the number of each frequency's ring (H,W'); `weights`,
    how often the whole transform holds a frequency, by column (W',); `order`, the flat frequencies ring by ring;
    `sizes`."""

    of: Tensor
    weights: Tensor
    order: Tensor
    sizes: list[int]

    def sums(self, first: Tensor, other: Tensor) -> Tensor:
        """Of the real part of one spectrum times the conjugate of another, (N,C,H,W',2) each, the sum over channels
        and over each ring of the whole transform: (N,R)."""
        rows = max(1, VALUES // first[0, :, 0].numel()) if first.device.type == "cpu" else first.shape[2]
        products = []
        for left, right in zip(first.split(rows, 2), other.split(rows, 2), strict=True):
            parts = (left * right).sum(1)
            products.append((parts[..., 0] + parts[..., 1]) * self.weights)
        by_ring = torch.cat(products, 1).flatten(1).index_select(1, self.order)
        # Sums of slices have the same bits every time, on any device. Sums by a scatter do not.
        return torch.stack(list(map(SUM, by_ring.split(self.sizes, 1))), 1)


@lru_cache(maxsize=2)  # 2 numbers a pixel or so
@torch.inference_mode(False)
def rings_of(height: int, width: int, device: torch.device) -> Rings:
    """A small picture has few frequencies, and so fewer rings."""
    count = max(1, min(RINGS, min(height, width) // 4))
    rows, columns = torch.fft.fftfreq(height, dtype=torch.float64), torch.fft.rfftfreq(width, dtype=torch.float64)
    radius = (2 * (rows[:, None].square() + columns.square())).sqrt()
    # A frequency on the border of two rings lies in the outer one, however this processor rounds.
    of = (radius * count * (1 + 1e-9)).long().clamp(max=count - 1)
    weights = torch.full((len(columns),), 2)
    weights[0] = 1
    if width % 2 == 0:
        weights[-1] = 1
    order, sizes = of.flatten().argsort(stable=True), of.flatten().bincount(minlength=count).tolist()
    return Rings(of.to(device), weights.to(device), order.to(device), sizes)
