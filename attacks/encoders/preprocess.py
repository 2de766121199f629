"""What an encoder does to a picture before its first layer, inside the graph."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.tiles import Cut, Tiles, anyres, split
from transforms import jpeg, resize
from transforms.devices import constants
from transforms.doors import NOISE, Doored, formed, unchecked
from transforms.resizing.resize import check_kernel
from transforms.sampling.straight_through import saturate

#: How a picture of any shape is brought to a size: "squash" changes its aspect; "cover" keeps it and fills the whole
#: size (a crop follows); "contain" keeps it and stays within the size (padding follows). For networks that read whole
#: patches, with `multiple`: "within" shrinks a larger picture to fit in the size and
#: rounds its sides up; "area" rounds them to the nearest, with a number of pixels within `limits`; "patches" makes
#: the picture as large as it can be with at most `limits[1]` patches.
Fit = Literal["squash", "cover", "contain", "within", "area", "patches"]
#: How a length is rounded to whole pixels.
Rounding = Literal["down", "nearest"]
#: The longest side in pixels; a longer one is a mistake, and memory would run out.
LONGEST = 16384

_resize, _jpeg = unchecked(resize), unchecked(jpeg)


@dataclass(frozen=True)
class Preprocess(Doored, slack=NOISE, channels=3):
    """Resize with a named library's kernel, clamp to [0,1], crop or pad about the centre, then (x - mean) / std.

    The clamp is part of a library's behaviour: its 8-bit image cannot hold the overshoot of a bicubic kernel, and an
    attack must not use values that no file can hold.

    Args:
        size: (height, width), or one number for both; None leaves the picture as large as it is.
        kernel: see `transforms.resizing.resize`.
        mean, std: per channel, in the order in which the network takes the channels, for values in [0,1]: a network
            for [-1,1] has 0.5 and 0.5, one for 0..255 has 0 and 1/255.
        fit: see `Fit`.
        crop: (height, width) cut from the middle after the resize; where the picture is smaller, `fill` is laid
            around it. None for no crop.
        rounding: of the length that follows from the aspect (torchvision's Resize rounds down, timm's and
            open_clip's ResizeKeepRatio to the nearest).
        centre: of a crop with an odd margin: "nearest" rounds half to even, as torchvision does; "down" puts the
            smaller half first, as every odd border has it.
        fill: of the padding, in [0,1], per channel of an RGB picture or one number for all.
        multiple: each side is made a multiple of this: rounded down (a VAE's 8), or as `fit` says; then `size` is
            None, but for "within".
        limits: (least, most) of "area" in pixels, of "patches" in patches; null for every other `fit`.
        tiles: the picture becomes views of `size`, cut from a larger version; null for the one view.
        grids: the sizes of that version: of "anyres" those to choose from, of "split" one, its longer side twice.
        bgr: the network takes blue first.
        eight_bit: the resize rounds to whole levels, as Pillow and OpenCV do with an 8-bit picture, in their own
            arithmetic; the gradient goes straight through.
        jpeg: the quality at which the picture is saved as JPEG between the resize and the crop; null for no file.

    Raises:
        ValueError: an impossible value, with the name of the field.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Preprocess
        >>> half = (0.5, 0.5, 0.5)
        >>> preprocess = Preprocess(256, "pil_bicubic", mean=half, std=half, fit="cover", crop=(224, 224))
        >>> print(preprocess)
        resize     shorter side to 256, pil_bicubic, clamped to [0, 1]
        crop       central 224x224
        normalise  (x - (0.5, 0.5, 0.5)) / (0.5, 0.5, 0.5), RGB: values -1 to 1
        >>> preprocess(torch.ones(1, 3, 480, 640)).shape
        torch.Size([1, 3, 224, 224])
    """

    size: int | tuple[int, int] | None
    kernel: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit = "squash"
    crop: tuple[int, int] | None = None
    rounding: Rounding = "down"
    centre: Rounding = "nearest"
    fill: float | tuple[float, ...] = 0.0
    multiple: int = 1
    limits: tuple[int, int] | None = None
    tiles: Cut | None = None
    grids: tuple[tuple[int, int], ...] = ()
    bgr: bool = False
    eight_bit: bool = False
    jpeg: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():  # lists are what configurations and libraries write
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(tuple(v) if isinstance(v, list) else v for v in value))
        check_kernel(self.kernel)
        has_limits = self.fit in ("area", "patches")
        if (has_limits and self.size is not None) or (self.fit == "within" and self.size is None):
            need = "`limits`, and null for `size`" if has_limits else "a `size`"
            raise ValueError(f"`fit` {self.fit} takes {need}; got size {self.size}")
        for name, holds, rule in self._rules():
            if not holds:
                raise ValueError(f"`{name}` must be {rule}; got {getattr(self, name)!r}")
        if self.multiple > 1 and self.size is not None and self.fit != "within":
            raise ValueError(
                f"`multiple` stands in place of `size`, which then is null; got {self.multiple} and size {self.size}"
            )

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        """Each field, whether it has a possible value, and what it must be."""
        yield "mean", _numbers(self.mean), "a finite number for each of 3 channels"
        yield "std", _numbers(self.std) and min(self.std) > 0, "positive, a finite number for each of 3 channels"
        for name, kinds in (("fit", Fit), ("rounding", Rounding), ("centre", Rounding)):
            yield name, getattr(self, name) in get_args(kinds), f"one of {', '.join(get_args(kinds))}"
        sides = f"(height, width) in whole pixels, 1 to {LONGEST}"
        size = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        yield "size", self.size is None or _box(size), f"{sides}, one number for both, or null"
        yield "crop", self.crop is None or _box(self.crop), f"{sides}, or null"
        yield "multiple", _box((self.multiple, self.multiple)), "a whole number of at least 1"
        if self.fit in ("area", "patches"):
            yield "limits", _in_order(self.limits), f"(least, most) in whole numbers for fit {self.fit}"
        else:
            yield "limits", self.limits is None, f"null for fit {self.fit}"
        tiles = isinstance(self.size, tuple) and size[0] == size[1] and self.tiles in get_args(Cut)
        cuts = f"one of {', '.join(get_args(Cut))}, with a square `size` (side, side), or null"
        yield "tiles", self.tiles is None or tiles, cuts
        grids = isinstance(self.grids, tuple) and all(_box(grid) for grid in self.grids)
        grids = grids and bool(self.grids) == (self.tiles is not None)
        yield "grids", grids, "pairs (height, width), with `tiles` alone"
        fill = self.fill if isinstance(self.fill, tuple) else (self.fill,) * 3
        in_range = _numbers(fill) and 0 <= min(fill) <= max(fill) <= 1
        yield "fill", in_range, "in [0, 1], one number or 3 of the channels"
        is_quality = self.jpeg is None or (_box((self.jpeg, 1)) and self.jpeg <= 100 and self.tiles is None)
        yield "jpeg", is_quality, "a quality, 1 to 100, without `tiles`, or null"
        for name in ("bgr", "eight_bit"):
            yield name, isinstance(getattr(self, name), bool), "true or false"

    def __call__(self, images: Tensor) -> Any:
        """(N,3,H,W) in [0,1] -> (N,3,height,width), normalised; `Tiles` where there are `tiles`. Raises ValueError
        unless there are three channels."""
        if images.dim() != 4 or images.shape[1] != 3:
            formed(images, channels=3)
        height, width = images.shape[2:]
        if self.tiles is not None and isinstance(self.size, tuple):
            cut = anyres if self.tiles == "anyres" else split
            return Tiles(self._normalised(cut(images, self.size[0], self.grids, self._to)), (height, width))
        images = self._to(images, self.resized(height, width))
        if self.jpeg is not None:
            images = _jpeg(images, self.jpeg)
        if self.crop is not None:
            images = self._frame(images, self.crop)
        return self._normalised(images)

    def _to(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        if images.shape[2:] == size:
            return images
        return saturate(_resize(images, size, self.kernel, eight_bit=self.eight_bit))

    def _normalised(self, images: Tensor) -> Tensor:
        if self.bgr:
            images = images.flip(-3)
        mean, std = (self.mean, images.dtype, images.device), (self.std, images.dtype, images.device)
        return (images - constants(*mean)[:, None, None]) / constants(*std)[:, None, None]

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of a picture after the resize, before the crop."""
        if self.fit == "area" and self.limits is not None:
            return by_area(height, width, self.limits, self.multiple)
        if self.fit == "patches" and self.limits is not None:
            return by_patches(height, width, self.limits[1], self.multiple)
        if self.size is None:
            return max(1, height // self.multiple) * self.multiple, max(1, width // self.multiple) * self.multiple
        box = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if self.fit == "squash":
            return box
        if self.fit == "within":
            return fit_within(height, width, box, self.multiple)
        ratios = height / box[0], width / box[1]
        if self.rounding == "nearest":
            ratio = min(ratios) if self.fit == "cover" else max(ratios)
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        # In whole numbers: 500 * (224 / 400) is a hair below 280 in floating point.
        by_height = (ratios[0] <= ratios[1]) == (self.fit == "cover")
        if by_height:
            return box[0], max(1, int(box[0] * width / height))
        return max(1, int(box[1] * height / width)), box[1]

    @property
    def frame(self) -> tuple[int, int] | None:
        """(height, width) of the output, where it is the same for all pictures (`fit` may leave a side to them)."""
        size = self.crop or (None if self.fit == "within" else self.size)
        return (size, size) if isinstance(size, int) else size

    def _frame(self, images: Tensor, frame: tuple[int, int]) -> Tensor:
        border: list[int] = []
        for side, target in zip(images.shape[2:], frame, strict=True):
            spare = side - target
            start = -(round(spare / 2) if self.centre == "nearest" and spare > 0 else int(spare / 2))
            border = [start, -spare - start, *border]  # F.pad begins with the last axis
        if not any(border):
            return images
        values = self.fill if isinstance(self.fill, tuple) else (self.fill,) * 3
        fill = constants(values, images.dtype, images.device)[:, None, None]
        return F.pad(images - fill, border) + fill if max(border) > 0 else F.pad(images, border)

    def replace(self, fields: Mapping[str, Any]) -> "Preprocess":
        """This specification with some fields of a configuration's. Raises ValueError with the key."""
        names = [field.name for field in dataclasses.fields(Preprocess)]
        for key in fields:
            if key not in names:
                raise ValueError(f"unknown key `encoder.preprocess.{key}`: known here are {', '.join(names)}")
        try:
            return dataclasses.replace(self, **fields)
        except ValueError as error:  # each begins with the field in backticks
            raise ValueError(f"`encoder.preprocess.{str(error)[1:]}") from None

    def lines(self) -> list[tuple[str, str]]:
        rows = []
        box = self.size if isinstance(self.size, tuple) else (self.size or 0, self.size or 0)
        floor, ceiling = self.limits or (0, 0)
        if self.fit in ("area", "patches"):
            range_text = f"{floor} to {ceiling} pixels" if self.fit == "area" else f"at most {ceiling} patches"
            size_text = f"each side to a multiple of {self.multiple}, {range_text}"
        elif self.tiles is not None:
            largest = " or ".join(f"{grid[0]}x{grid[1]}" for grid in self.grids[:5])
            rest = f" or {len(self.grids) - 5} others" if len(self.grids) > 5 else ""
            size_text = f"to {box[0]}x{box[1]}, and to {largest}{rest} in tiles of that ({self.tiles})"
        elif self.size is None:
            size_text = f"each side down to a multiple of {self.multiple}"
        elif self.fit == "within":
            size_text = f"no larger than {box[0]}x{box[1]}, each side up to a multiple of {self.multiple}"
        else:
            shape = f"{box[0]}x{box[1]}"
            size_text = {"squash": f"to {shape}, whatever the aspect", "contain": f"to fit within {shape}"}.get(
                self.fit, f"shorter side to {box[0]}" if box[0] == box[1] else f"to cover {shape}"
            )
        library = {"pil": " as Pillow 13 does", "pil12": " as Pillow up to 12 does"}.get(
            self.kernel.split("_")[0], ""
        )
        bits = f", rounded to 8 bits{library}" if self.eight_bit else ""
        resizes = self.size is not None or self.multiple > 1
        text = f"{size_text}, {self.kernel}, clamped to [0, 1]{bits}"
        rows.append(("resize", text if resizes else "none: the picture as large as it is"))
        if self.jpeg is not None:
            rows.append(("file", f"JPEG of quality {self.jpeg}"))
        if self.crop is not None:
            small = self.fit == "contain" or box[0] < self.crop[0] or box[1] < self.crop[1]
            pad = f", where smaller padded with {self.fill}" if small else ""
            rows.append(("crop", f"central {self.crop[0]}x{self.crop[1]}{pad}"))
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        low = min((0 - m) / s for m, s in zip(self.mean, self.std, strict=True))
        high = max((1 - m) / s for m, s in zip(self.mean, self.std, strict=True))
        order = "BGR" if self.bgr else "RGB"
        rows.append(("normalise", f"(x - ({mean})) / ({std}), {order}: values {low:.4g} to {high:.4g}"))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<10} {text}" for name, text in self.lines())


def preprocess_from(fields: Mapping[str, Any], label: str) -> Preprocess:
    """A specification from a configuration alone, for networks that carry none of their own (`label` is one)."""
    missing = [name for name in ("size", "mean", "std") if name not in fields]
    if missing:
        raise ValueError(
            f"{label} says nothing of its preprocessing: give `encoder.preprocess.{missing[0]}` (it needs size, mean "
            "and std; and kernel, fit, crop, bgr where they are not pil_bilinear, squash, none, false)"
        )
    return Preprocess(None, "pil_bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)).replace(fields)


#: A `Preprocess` and pictures that were checked -> what the network takes.
preprocess_pictures = unchecked(Preprocess.__call__)


def _numbers(values: Any) -> bool:
    return isinstance(values, tuple) and len(values) == 3 and all(_is(v, Real) and math.isfinite(v) for v in values)


def _box(sides: Any) -> bool:
    return isinstance(sides, tuple) and len(sides) == 2 and all(_is(v, Integral) and 1 <= v <= LONGEST for v in sides)


def _in_order(limits: Any) -> bool:
    pair = isinstance(limits, tuple) and len(limits) == 2 and all(_is(v, Integral) for v in limits)
    return pair and 1 <= limits[0] <= limits[1]


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def fit_within(height: int, width: int, box: tuple[int, int], multiple: int) -> tuple[int, int]:
    """A picture larger than the box is shrunk to fit in it; then each side is rounded up to a whole `multiple`."""
    ratio = max(1.0, height / box[0], width / box[1])
    return _sides(height, width, multiple, lambda side: math.ceil(math.floor(side / ratio) / multiple))


def by_area(height: int, width: int, limits: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Each side to the nearest `multiple`; where the number of pixels is then outside the limits (lowest, highest),
    the picture is scaled to the nearer one and its sides are rounded inwards."""
    area = round(height / multiple) * round(width / multiple) * multiple**2
    lowest, highest = limits
    if area > highest:
        ratio = math.sqrt(height * width / highest)
        return _sides(height, width, multiple, lambda side: math.floor(side / ratio / multiple))
    if area < lowest:
        ratio = math.sqrt(lowest / (height * width))
        return _sides(height, width, multiple, lambda side: math.ceil(side * ratio / multiple))
    return _sides(height, width, multiple, lambda side: round(side / multiple))


def by_patches(height: int, width: int, limit: int, multiple: int) -> tuple[int, int]:
    """The largest scale at which the sides, rounded up to whole patches of `multiple` pixels, have at most `limit`
    patches; searched by halving to 1e-5, as SigLIP2's processor does."""

    def sides(scale: float) -> tuple[int, int]:
        return _sides(height, width, multiple, lambda side: math.ceil(side * scale / multiple))

    low, high = 1e-5 / 10, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        rows, columns = sides(middle)
        low, high = (middle, high) if rows * columns <= limit * multiple**2 else (low, middle)
    return sides(low)


def _sides(height: int, width: int, multiple: int, count: Callable[[int], int]) -> tuple[int, int]:
    """Both sides with `count` of them, at least one, in patches."""
    return max(1, count(height)) * multiple, max(1, count(width)) * multiple
