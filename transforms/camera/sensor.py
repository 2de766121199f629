"""Sensor stages: the noise of a camera's pixels, and the 8 bits it writes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from transforms.colour.spaces import at_least_float32
from transforms.devices import HOST, uploaded
from transforms.doors import OVERSHOOT, door, unchecked
from transforms.draws.ranges import Coordinate, NoCoordinates, Range, Ranged
from transforms.draws.samplers import stream
from transforms.sampling.straight_through import saturate, straight_through

#: Below this deviation, a quarter of an 8-bit level, its derivative in the variance is bounded, for it grows to
#: infinity: black has no shot noise. The deviation itself is exact.
FLOOR = 1e-3


@dataclass(frozen=True)
class SensorNoise(Ranged):
    """Add Poisson-Gaussian noise (Foi et al. 2008): at a value x its mean is 0 and its variance shot * x + read^2,
    independent from pixel to pixel and channel to channel. Then clamp, as a sensor saturates.

    x is the stored value, gamma included. The noise is deviation(x) * e, where the field e ~ N(0, 1) is fixed by the
    last coordinate of `u`. So gradients flow through the picture, through the deviation, and into `read` and `shot`.

    Use: a camera in little light.
    Not: the loss of a file: `Quantise`, `Jpeg`.
    Cost: linear in the pixels, and one normal number a value, drawn on the CPU.
    Oracle: mean, variance and whiteness, tests/transforms/camera/test_sensor.py.

    Args:
        read: (low, high) standard deviation of the signal-independent part, in full scale (0.01: 2.55 levels of 255).
        shot: (low, high) variance at full scale of the part that grows with light: 1 / (full-well electrons).

    The field e is a function of the exact value of the coordinate "noise (seed)" and of the shape (C,H,W), whatever
    the rest of the batch or the device. Draws are a function of (seed, step), hence so is pixel noise. A Grid has few
    values of the coordinate: it is no sampler for noise.

    Examples:
        >>> from transforms.camera import SensorNoise
        >>> noisy = SensorNoise(read=(0.05, 0.05))(torch.full((1, 3, 64, 64), 0.5), torch.tensor([[0.0, 0.0, 0.25]]))
        >>> round(float(noisy.std()), 2)
        0.05
    """

    read: Range = (0.0, 0.0)
    shot: Range = (0.0, 0.0)

    coordinates = (
        Coordinate("read noise (of full scale)", "read", 0, 1),
        Coordinate("shot noise (of full scale)", "shot", 0, 1),
        Coordinate("noise (seed)", "", 0, 1),
    )
    discrete: ClassVar[tuple[int, ...]] = (2,)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        work = at_least_float32(images)
        values = uploaded(self.values(u), work.device).to(work.dtype)
        read, shot = (value[:, None, None, None] for value in values[:, :2].unbind(-1))
        deviation = _root(shot * saturate(work) + read.square())
        field = white_noise(u[:, 2], (images.shape[1], images.shape[2], images.shape[3]), work.device)
        return saturate(work + deviation * field.to(work.dtype)).to(images.dtype)


def _root(variance: Tensor) -> Tensor:
    """The square root; its derivative goes on as the tangent below `FLOOR`."""
    tangent = FLOOR / 2 + variance / (2 * FLOOR)
    safe = torch.where(variance > FLOOR**2, variance, 1.0)  # before the root: 0 times infinity is NaN
    return straight_through(variance.sqrt(), torch.where(variance > FLOOR**2, safe.sqrt(), tangent))


#: Values from which several threads draw them: a few milliseconds of one.
THREAD_LIMIT = 2**20


def white_noise(seeds: Tensor, shape: tuple[int, int, int], device: torch.device = HOST) -> Tensor:
    """One N(0, 1) field of `shape` for each of the numbers `seeds` (N,): (N, *shape) float32 on `device`.

    All bits of a seed count, and float32 and float64 of the same number give the same field. The generators are on
    the CPU, one for each field, so that the bits are the same on every device and with any number of threads.
    """
    # torch seeds its CPU generator with 32 bits and drops the others, so the number is hashed into those.
    keys = [stream(0, "pixel noise", number) % 2**32 for number in seeds.detach().double().tolist()]
    with torch.inference_mode(False):  # which is a thread's own
        # From pinned memory a copy to a GPU does not wait.
        fields = torch.empty(len(keys), *shape, dtype=torch.float32, pin_memory=device.type == "cuda")

    def draw(rows: slice) -> None:
        for field, key in zip(fields[rows], keys[rows], strict=True):
            field.normal_(generator=torch.Generator().manual_seed(key))

    threads = torch.get_num_threads()
    if threads == 1 or fields.numel() < THREAD_LIMIT:
        draw(slice(None))
    else:
        [*_pool(threads).map(draw, [slice(i, None, threads) for i in range(threads)])]
    return uploaded(fields, device)


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Kept, because torch takes milliseconds to begin in a new thread."""
    return ThreadPoolExecutor(threads)


@door(slack=OVERSHOOT, rank=None)
def quantise(images: Tensor, bits: int = 8) -> Tensor:
    """Round to the nearest of 2^bits levels, as a file holds: (x * 255).round() / 255 for 8 bits.

    Args:
        images: any shape, any floating dtype; values outside [0,1] are clamped, more than 0.4 outside are refused.
        bits: whole number from 1 to 16.

    Returns:
        The rounded values in the dtype of `images`. The gradient passes straight through within [0,1], ends
        included, and is zero outside, where the clamp holds the value.

    Raises:
        ValueError: `bits` out of range, or values too far outside [0,1].

    Examples:
        >>> from transforms.camera import quantise
        >>> values = torch.tensor([0.1, 0.6, 1.2], requires_grad=True)
        >>> torch.autograd.grad(quantise(values, bits=1).sum(), values)[0].tolist()
        [1.0, 1.0, 0.0]
    """
    _check_bits(bits)
    # Half precision cannot tell 255 x from its neighbours, so a level would be missed.
    work = saturate(at_least_float32(images))
    top_level = 2**bits - 1
    return straight_through((work.detach() * top_level).round() / top_level, work).to(images.dtype)


@dataclass(frozen=True)
class Quantise(NoCoordinates, slack=OVERSHOOT):
    """Round to `bits` bits; the gradient passes straight through (see `quantise`).

    Use: a view that is stored in 8 bits, or fewer bits as a defence.
    Not: a JPEG or WebP, which rounds by itself.
    Source: what a PNG holds.
    Oracle: what a PNG holds, tests/transforms/camera/test_sensor.py.

    Args:
        bits: a whole number from 1 to 16.

    Examples:
        >>> from transforms.camera import Quantise
        >>> thirds = 3 * Quantise(bits=2)(torch.tensor([[[[0.1, 0.3, 0.9]]]]), torch.zeros(1, 0))
        >>> [round(value, 4) for value in thirds.flatten().tolist()]
        [0.0, 1.0, 3.0]
    """

    bits: int = 8

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return unchecked(quantise)(images, self.bits)


def _check_bits(bits: int) -> None:
    if type(bits) is not int or not 1 <= bits <= 16:
        raise ValueError(f"`bits` must be a whole number from 1 to 16; got {bits!r} (8 is what a picture file holds)")
