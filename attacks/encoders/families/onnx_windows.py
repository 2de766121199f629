"""Operators of ONNX that read windows, borders and places between pixels."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def _window(
    x: Tensor, kernel: Sequence[int], *, auto_pad: str = "NOTSET", ceil_mode: int = 0, **lengths: Sequence[int]
) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
    """Strides, dilations, and of each axis the border before it, the border behind it, and how far behind it windows
    read: with `ceil_mode` to the end of the reach one that begins in the input."""
    pads, unit = lengths.get("pads"), [1] * len(kernel)
    strides, dilations = (list(lengths.get(name) or unit) for name in ("strides", "dilations"))
    borders = []
    for i, n in enumerate(x.shape[2:]):
        span, stride = (kernel[i] - 1) * dilations[i] + 1, strides[i]
        low, high = (pads[i], pads[len(kernel) + i]) if pads and auto_pad == "NOTSET" else (0, 0)
        if auto_pad.startswith("SAME"):
            half, odd = divmod(max((math.ceil(n / stride) - 1) * stride + span - n, 0), 2)
            low, high = (half, half + odd) if auto_pad == "SAME_UPPER" else (half + odd, half)
        steps = -((span - n - low - high) // stride) if ceil_mode else (n + low + high - span) // stride
        steps -= steps * stride >= n + low
        borders.append((low, high, steps * stride + span - n - low))
    return strides, dilations, borders


def _with_border(x: Tensor, borders: Sequence[tuple[int, ...]], value: float = 0.0) -> Tensor:
    """`x` with (first, ..., reach) values around its reach axes."""
    flat = [n for border in reversed(borders) for n in (border[0], border[-1])]  # F.pad begins with the reach axis
    return F.pad(x, flat, value=value) if any(flat) else x


def conv(x: Tensor, w: Tensor, b: Tensor | None = None, *, group: int = 1, **window: Any) -> Tensor:
    strides, dilations, borders = _window(x, w.shape[2:], **window)
    run: Any = (F.conv1d, F.conv2d, F.conv3d)[w.dim() - 3]
    answer: Tensor = run(_with_border(x, [border[:2] for border in borders]), w, b, strides, 0, dilations, group)
    return answer


def max_pool(x: Tensor, *, kernel_shape: Sequence[int], **window: Any) -> Tensor:
    strides, dilations, borders = _window(x, kernel_shape, **window)
    run: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3]
    answer: Tensor = run(_with_border(x, borders, -math.inf), list(kernel_shape), strides, 0, dilations)
    return answer


def average_pool(x: Tensor, *, kernel_shape: Sequence[int], count_include_pad: int = 0, **window: Any) -> Tensor:
    strides, dilations, borders = _window(x, kernel_shape, **window)
    if set(dilations) != {1}:
        raise ValueError(f"dilations={dilations} are not supported: export it without them")
    run: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[x.dim() - 3]
    share = _with_border(torch.ones_like(x[:1, :1]), [border[:2] for border in borders], float(count_include_pad))
    share = _with_border(share, [(0, reach - high) for _, high, reach in borders])
    average: Tensor = run(_with_border(x, borders), list(kernel_shape), strides)
    answer: Tensor = average / run(share, list(kernel_shape), strides)
    return answer


def single(number: Any) -> Any:
    return number[0] if isinstance(number, list) else number


def slice_tensor(
    x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] = (), steps: Sequence[int] = ()
) -> Tensor:
    parts = zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True)
    for start, end, axis, step in parts:
        if step < 0:  # torch has no backward slices
            x, start, end, step = x.flip(axis), -start - 1, -end - 1, -step
        x = x[(*(slice(None),) * (axis % x.dim()), slice(start, end, step))]
    return x


def pad(
    x: Tensor, pads: Sequence[int], value: Any = 0.0, axes: Sequence[int] = (), *, mode: str = "constant"
) -> Tensor:
    dims = [axis % x.dim() for axis in axes or range(x.dim())]
    borders = {axis: (pads[i], pads[i + len(dims)]) for i, axis in enumerate(dims)}
    if mode == "constant":
        return _with_border(x, [borders.get(axis, (0, 0)) for axis in range(x.dim())], single(value) or 0.0)
    for axis, (low, high) in borders.items():
        n, i = x.shape[axis], torch.arange(-low, x.shape[axis] + high, device=x.device)
        if mode == "reflect":
            i = n - 1 - (n - 1 - i % max(2 * n - 2, 1)).abs()
        x = x.index_select(axis, i % n if mode == "wrap" else i.clamp(0, n - 1))
    return x


def resize(
    x: Tensor,
    roi: Tensor | None = None,  # noqa: ARG001 it is of a crop, whose mode is refused
    scales: Sequence[float] = (),
    sizes: Sequence[int] = (),
    *,
    axes: Sequence[int] = (),
    coordinate_transformation_mode: str = "half_pixel",
    **kernel: Any,
) -> Tensor:
    for i, axis in enumerate(axes or range(x.dim())):
        n = x.shape[axis]
        length = sizes[i] if sizes else math.floor(n * scales[i])
        scale = length / n if sizes else scales[i]
        if length != n or scale != 1:
            places = _sources(n, length, scale, coordinate_transformation_mode).to(x.device)
            x = _read_at(x.movedim(axis, -1), places, **kernel).movedim(-1, axis)
    return x


def _sources(n: int, length: int, scale: float, mode: str) -> Tensor:
    """The coordinates of an output's pixels in an input of `n`. In float32, as ONNX Runtime: it decides ties."""
    i = torch.arange(length, dtype=torch.float32)
    if mode == "align_corners":
        return i * ((n - 1) / max(length - 1, 1))
    if mode == "asymmetric" or (mode == "pytorch_half_pixel" and length == 1):
        return i / scale
    if mode not in ("half_pixel", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
        raise ValueError(f"coordinate_transformation_mode={mode} is not supported: export it with half_pixel")
    return (i + 0.5) / scale - (0.0 if mode == "tf_half_pixel_for_nn" else 0.5)


def _read_at(
    x: Tensor,
    places: Tensor,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
) -> Tensor:
    """The reach axis of `x`, read at `places`."""
    n, a = x.shape[-1], cubic_coeff_a
    if mode == "nearest":
        shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(nearest_mode, 0.0)
        rounding = torch.ceil if nearest_mode in ("ceil", "round_prefer_floor") else torch.floor
        return x.index_select(-1, rounding(places + shift).long().clamp(0, n - 1))
    taps = places.floor().long()[:, None] + torch.arange(*((0, 2) if mode == "linear" else (-1, 3)), device=x.device)
    d = (places[:, None] - taps).abs()
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, a * (((d - 5) * d + 8) * d - 4)  # Keys 1981
    weights = 1 - d if mode == "linear" else torch.where(d <= 1, near, far)
    matrix = torch.zeros(len(places), n, device=x.device).scatter_add(1, taps.clamp(0, n - 1), weights)
    return x @ matrix.T.to(x.dtype)
