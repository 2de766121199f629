"""Which resizer is this? A black box against every named kernel's own prediction, and its openness."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from attacks.resizers.black_box import (
    ROUNDING,
    WEIGHT_ERROR,
    ProbeLine,
    Prober,
    fit_line,
    is_linear,
    measure_values,
    measure_weights,
    noise_gain,
    open_box,
    predicts,
)
from attacks.resizers.openness import VIEWER, Openness, VisibleExample, crop_to, measure, target_picture
from attacks.resizers.separable import NOTHING, Axes, KernelAxis, full_axis, kernel_matrices
from transforms import resize
from transforms.resizing.resize import NAMES

#: The libraries' own nearest reads from a pixel's corner, all others around its centre.
CORNER = ("cv2_nearest", "torch_nearest")
#: Share of values that may be a level off in 8 bits: OpenCV's versions round ties in their own ways, the others none.
TIES = {"cv2": 0.01, "pil": 0.0, "torch": 0.0}
#: A first comparison, along lines, of levels: both passes and OpenCV's dropped bits round.
_SCREEN = 2.5
#: Full scale: the error of float32 weights, and of float32 coordinates, per source pixel of the longer side.
_FLOAT, _COORDINATE = 2e-5, 2e-7
#: Noise whose overshoot stays in range, and noise whose does not.
_NOISES = ((64, 191), (0, 255))


@dataclass(frozen=True)
class Identification:
    """What a preprocessing is.

    Attributes:
        kernels: the named kernels that predict all its results, each with the rows and columns of the crop and resize
            that it then has; several where they agree, none where none does.
        arithmetic: of the kernels: "8-bit", "float", or "either" where pixels are only copied.
        linear: whether it is, to the rounding of 8 bits.
        lines: where the output pixels look, down and across, measured.
        noise: see `noise_gain`.
        example: the attack on it in grey; None where it does not resize by rows and columns.
    """

    kernels: dict[str, Axes]
    arithmetic: Literal["8-bit", "float", "either"]
    linear: bool
    lines: tuple[ProbeLine, ProbeLine]
    noise: float
    prober: Prober
    figures: Openness
    example: VisibleExample | None


def identify(function: Callable[[Any], Any], image: Tensor, size: tuple[int, int], seed: int = 0) -> Identification:
    """Find out by calls alone which resizer `function` is, and how open it is.

    It is given flat pictures, ramps and noise of `size`. A kernel is named only if its prediction, with the crop or
    padding that was measured, equals the results on two pictures of colour noise: in 8 bits exactly (see `TIES`), in
    floating point to float32's rounding. If none does, the weights are measured, by some hundred calls. Raises
    ValueError where `function` takes or returns something else, is random, or fails.

    Args:
        function: an 8-bit array (H,W,3), or a PIL image, -> an array (h,w,3) or (3,h,w), a tensor or a PIL image, of
            any values that are a straight line of levels.
        image: (3,H,W) in [0,1], the photograph that is attacked.
        size: (H, W) of the pictures that it is given.
    """
    box = open_box(function, size)
    prober = Prober(box, measure_values(box, size), size)
    lines = (fit_line(prober, 0), fit_line(prober, 1))
    kernels, arithmetic = _matches(prober, lines, seed)
    noise = noise_gain(prober, seed)
    by_noise = Openness(None, None, None, seen=1 / max(noise, 1.0) ** 2, succeeds=True)
    figures, example = _openness(prober, lines, kernels, image, seed) or (by_noise, None)
    linear = prober.values.straight and is_linear(prober, seed)
    return Identification(kernels, arithmetic, linear, lines, noise, prober, figures, example)


def _openness(
    prober: Prober, lines: tuple[ProbeLine, ProbeLine], kernels: dict[str, Axes], image: Tensor, seed: int
) -> tuple[Openness, VisibleExample] | None:
    """The figures, from a named kernel's weights or else from measured ones; None where these predict nothing."""
    size = prober.size
    if kernels:
        name, axis = next(iter(kernels.items()))
        resizer, threshold = kernel_matrices(name, axis, size), NOTHING
    else:
        resizer, threshold = measure_weights(prober, lines), WEIGHT_ERROR
        if not predicts(resizer, prober, seed):
            return None
        axis = _measured_axes(lines, (len(resizer.rows), len(resizer.columns)), size)

    def call(pixels: np.ndarray) -> np.ndarray:
        return np.asarray(prober.levels(np.rint(255 * pixels[0])).mean(2)[None] / 255)

    picture = np.rint(crop_to(image, size).mean(0, keepdims=True) * 255) / 255
    target = target_picture((len(resizer.rows), len(resizer.columns))).mean(0, keepdims=True)
    window = (axis[0].visible, axis[1].visible)
    viewer = kernel_matrices(VIEWER, axis, size)
    return measure(picture, target, resizer, viewer, call, window=window, threshold=threshold)


def _matches(
    prober: Prober, lines: tuple[ProbeLine, ProbeLine], seed: int
) -> tuple[dict[str, Axes], Literal["8-bit", "float", "either"]]:
    """The kernels that predict the results exactly, with their crops, and their arithmetic."""
    kernels: dict[str, Axes] = {}
    if not prober.values.straight or prober.values.order is None:
        return kernels, "either"
    pairs = [(picture, prober.levels(picture)) for picture in (prober.noise(*ends, seed) for ends in _NOISES)]
    eight_bit = all(bool((levels == np.rint(levels)).all()) for _, levels in pairs)
    profiles = [np.random.default_rng(seed).integers(64, 192, length) for length in prober.size]
    responses = [(profile, prober.line_response(axis, profile)) for axis, profile in enumerate(profiles)]
    for kernel in NAMES:
        rows, columns = (_crops(kernel, *pair, line) for pair, line in zip(responses, lines, strict=True))
        for axes in itertools.product(rows, columns):
            if all(_agrees(kernel, axes, *pair, eight_bit) for pair in pairs):
                kernels[kernel] = axes
                break
    if any("nearest" in name for name in kernels):
        return kernels, "either"
    return kernels, "8-bit" if eight_bit else "float"


def _crops(kernel: str, profile: np.ndarray, response: np.ndarray, line: ProbeLine) -> list[KernelAxis]:
    """The crops of one axis with which a kernel makes `response` of `profile`, to some levels."""
    length, axes = len(profile), []
    for axis in dict.fromkeys(_candidates(line, kernel, length, len(response))):
        matrix = kernel_matrices(kernel, (axis, axis), (length, length)).rows
        if np.abs(matrix @ profile - response).max() <= _SCREEN:
            axes.append(axis)
    return axes


def _candidates(line: ProbeLine, kernel: str, length: int, count: int) -> Iterator[KernelAxis]:
    """The crops that fit a measured line: none, one of the result, one of the source."""
    yield full_axis(length, count)
    shift = line.shift + (line.scale / 2 if kernel in CORNER else 0.0)
    virtual, offset = round(length / line.scale), round(shift / line.scale)
    if 0 <= offset <= virtual - count:
        yield KernelAxis(0, length, virtual, offset, count)
    for start in (round(shift), round(shift) - 1, round(shift) + 1):
        span = round(line.scale * count)
        if start >= 0 and span >= 1 and start + span <= length:
            yield KernelAxis(start, span, count, 0, count)


def _agrees(kernel: str, axes: Axes, picture: np.ndarray, levels: np.ndarray, eight_bit: bool) -> bool:
    """Whether the kernel's prediction of `picture` (H,W,3) equals `levels` (h,w,3)."""
    rows, columns = axes
    source = np.ascontiguousarray(picture[rows.source, columns.source].transpose(2, 0, 1))
    images = torch.from_numpy(source)[None].float() / 255  # float32: torch's nearest then rounds as in its float32
    images = images if eight_bit or "nearest" in kernel else images.double()
    resized = resize(images, (rows.virtual, columns.virtual), kernel, eight_bit=eight_bit)
    prediction = 255 * resized[0, :, rows.output, columns.output].permute(1, 2, 0).double().numpy()
    if eight_bit:
        off = np.abs(np.rint(prediction) - levels)
        return bool(off.max() <= 1 and (off > 0).mean() <= TIES[kernel.split("_")[0]])
    if levels.min() >= -ROUNDING and levels.max() <= 255 + ROUNDING:  # clipped, or in range by itself
        prediction = prediction.clip(0, 255)
    return bool(np.abs(prediction - levels).max() <= 255 * (_FLOAT + _COORDINATE * max(source.shape[1:])))


def _measured_axes(lines: tuple[ProbeLine, ProbeLine], counts: tuple[int, int], size: tuple[int, int]) -> Axes:
    """Whole-picture resizes whose kept pixels lie where the lines say, as far as whole numbers do."""
    axes = []
    for line, count, length in zip(lines, counts, size, strict=True):
        virtual = max(count, round(length / abs(line.scale)))
        offset = min(max(round(line.shift / abs(line.scale)), 0), virtual - count)
        axes.append(KernelAxis(0, length, virtual, offset, count))
    return axes[0], axes[1]
