"""Projected gradient descent along the filtered mean of all gradients of a run."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Constraint, Done, Optimiser
from attacks.optimisers.gradient import check_step, decay
from attacks.runtime.values import stored
from attacks.schema.options import option
from transforms.devices import uploaded

#: Rings of the frequency plane that share one gain, at most; and the least gain.
RINGS, MIN_GAIN = 24, 0.01
#: The power of the sizes of a gradient's values before sums, the inverse of which comes after: a few views have a few
#: values that are far larger than all others.
POWER = 0.8
#: In a run of fewer than SHORT steps they are longer, by SHORT / steps, but at most LONGEST times: they could not go
#: far enough.
SHORT, LONGEST = 34, 3


@stored("wiener")
class WienerState(NamedTuple):
    """The weighted sum of the gradients, by colour axis: its `spectrum` (N,C,H,W',2) by `rfft2`, real and imaginary
    parts; the `energy` (N,C,R) of single gradients in each ring of frequencies, times their squared weights, added
    up; which values have had a gradient other than 0 (like delta); the `point` that delta looks ahead from; the
    number of steps; and the length of the first."""

    spectrum: Tensor
    energy: Tensor
    active: Tensor
    point: Tensor
    step: int
    length: float


@dataclass(frozen=True)
class Wiener(Optimiser):
    """PGD along the mean gradient of the run, noise filtered frequency by frequency and colour axis by colour axis.

    Gradients are compressed, value by value, to the power 0.8, and normalised per image to L2 norm 1; that of step k,
    counted from 1, has the weight k (as in the averaging of Shamir & Zhang 2013). They are noisy, as every view is
    another, and not equally so in coarse and fine detail, or in light and colour. So their sum is taken apart into
    rings of frequencies and, across the channels, into the axes of a cosine transform, which for RGB are light, red
    against blue, and green against both. The energy by which a part of the sum exceeds that of independent gradients
    is signal (`signal_share`), and the part is multiplied by its share of signal, the gain of Wiener's filter; the
    compression is then undone. This assumes one mean and independent noise: what drifts along a run, or turns from
    step to step where descent overshoots, counts as noise.

    The estimate is taken at a look-ahead point, once more along the last move (Lin et al. 2020): delta is this point,
    which lies in the set, and after the last step it is the point itself.

    Use: the default: every step sees other views, and so its gradient is noisy.
    Not: steps without noise, of which nothing is to be filtered: `draws=fixed`, or views without coordinates.
    Source: weights: Shamir & Zhang 2013; gradients of norm 1: Dong et al. 2018; gain: Wiener 1949; one step ahead:
    Lin et al. 2020; their combination, and the constants: docs/decisions.md.
    Cost: one gradient for each view of a step, and of each channel two Fourier transforms a step.
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
        energy = spectrum.new_zeros(*delta.shape[:2], len(rings.sizes))
        longer = min(LONGEST, max(1, SHORT / steps))
        static = torch.zeros_like(delta, dtype=torch.bool)
        return WienerState(spectrum, energy, static, delta, 0, self.rel_step_size * longer * reach)

    def step(
        self, delta: Tensor, estimate: Estimate, state: WienerState, constraint: Constraint, progress: Done
    ) -> tuple[Tensor, WienerState]:
        grad = estimate.grad
        rings, number = rings_of(*grad.shape[2:], grad.device), state.step + 1
        axes = cosine_axes(grad.shape[1], state.spectrum.dtype, grad.device)
        values = grad.to(axes)
        largest = values.abs().amax((1, 2, 3), keepdim=True).clamp(min=torch.finfo(axes.dtype).tiny)
        compressed = (values / largest).abs_().pow_(POWER).copysign_(values)
        spectrum = torch.view_as_real(torch.fft.rfft2(across_channels(compressed, axes)))
        single = rings.energy(spectrum)
        norm = single.sum((1, 2)).sqrt()  # by Parseval
        weight = torch.where(norm > 0, number / norm, 0)
        spectrum = torch.addcmul(state.spectrum, spectrum, weight[:, None, None, None, None])
        energy = torch.addcmul(state.energy, single, weight[:, None, None].square())
        active = state.active | (grad != 0)
        mean = across_channels(wiener_filter(spectrum, energy, number, grad.shape[3]), axes.mT)
        undone = mean.abs().sqrt_().sqrt_().mul_(mean)  # to the power 1 / POWER, twice as fast as by `pow`
        direction = undone.to(grad).masked_fill_(~active, 0)
        length = state.length * decay(self.schedule, progress.before, delta)
        move = constraint.steepest(direction, length, state.point)
        point = constraint.project(state.point, move)
        goes_on = progress.after < 1
        if not bool(goes_on.all()):
            move = torch.where(uploaded(goes_on, delta.device)[:, None, None, None], move, 0)
        next_delta = constraint.project(point, move)
        return next_delta, WienerState(spectrum, energy, active, point, number, state.length)


def across_channels(images: Tensor, axes: Tensor) -> Tensor:
    """Images (N,C,H,W) by axis across their channels, from the axes (A,C): (N,A,H,W)."""
    (first, column), *others = zip(images.split(1, 1), axes[..., None, None].unbind(1), strict=True)
    result: Tensor = first * column
    for channel, column in others:  # image by image the same bits, which a product of matrices does not promise
        result.addcmul_(channel, column)
    return result


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def cosine_axes(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The axes (C,C) of the orthonormal cosine transform (DCT-II) of so many channels, one a row."""
    return torch.tensor(scipy.fft.dct(np.eye(count), axis=0, norm="ortho")).to(device, dtype)


def signal_share(energy: Tensor, single: Tensor, steps: int) -> Tensor:
    """Which share of the `energy` (N,C,R) of a sum of so many gradients, the k-th times k, is signal; at least
    `MIN_GAIN`, so that a sum of noise alone keeps its direction. `single` is the energy of single gradients, each
    times its squared weight, added up.

    With the signal s and the noise n of a gradient, a = (1 + ... + k)^2 and b = 1 + ... + k^2, the two are a s + b n
    and b (s + n) on average, so that a s, which is signal, is their difference times a / (a - b)."""
    if steps == 1:
        return torch.ones_like(energy)
    share = 2 * (2 * steps + 1) / (3 * steps * (steps + 1))  # b / a
    return ((energy - single) / (1 - share) / energy.clamp(min=torch.finfo(energy.dtype).tiny)).clamp(MIN_GAIN, 1)


def wiener_filter(spectrum: Tensor, single: Tensor, steps: int, width: int) -> Tensor:
    """The sum (N,C,H,W) of so many gradients from its `spectrum`, each part times its `signal_share`."""
    height = spectrum.shape[2]
    rings = rings_of(height, width, spectrum.device)
    gain = signal_share(rings.energy(spectrum), single, steps)[..., rings.of, None]
    total: Tensor = torch.fft.irfft2(torch.view_as_complex(spectrum * gain), s=(height, width))
    return total


class Rings(NamedTuple):
    """The rings of the frequencies (H,W') of `rfft2`: `of`, the number of each frequency's ring (H,W'); `weights`,
    how often the whole transform holds a frequency, by column (W',); `order`, the flat frequencies ring by ring;
    `sizes`."""

    of: Tensor
    weights: Tensor
    order: Tensor
    sizes: list[int]

    def energy(self, spectrum: Tensor) -> Tensor:
        """Of a spectrum (N,C,H,W',2) the energy of each channel in each ring of the whole transform: (N,C,R)."""
        real, imaginary = spectrum.unbind(-1)
        squares = real.square().addcmul_(imaginary, imaginary).mul_(self.weights)
        by_ring = squares.flatten(2).index_select(2, self.order)
        # Sums of slices have the same bits every time, on any device. Sums by a scatter do not.
        return torch.stack([part.sum(2) for part in by_ring.split(self.sizes, 2)], 2)


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
