"""Preprocessing of 8-bit pictures as it is deployed: codecs and resamplers of other programs, and a person's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, features

from attacks.resizers.black_box import ProbeLine, Prober, fit_line, measure_values, open_box
from attacks.runtime.extras import extra
from transforms.resizing.resize import target_size

#: An 8-bit picture (H,W,3) -> the picture as read back from a file.
Codec = Callable[[np.ndarray], np.ndarray]


def codecs() -> tuple[dict[str, Codec], list[str]]:
    """The codecs by name, and a line for each that is not installed."""
    available: dict[str, Codec] = {"PNG": partial(through_codec, kind="PNG")}
    available |= {f"JPEG {q}": partial(through_codec, kind="JPEG", quality=q) for q in (95, 90, 75, 50)}
    if not features.check("webp"):
        return available, ["WebP 80: this Pillow was built without WebP; Pillow's own wheels have it"]
    return available | {"WebP 80": partial(through_codec, kind="WEBP", quality=80)}, []  # 80 is Pillow's default


def through_codec(pixels: np.ndarray, kind: str, **options: int) -> np.ndarray:
    """An 8-bit picture (H,W,3), saved as `kind` and read back."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format=kind, **options)
    with Image.open(file, formats=(kind,)) as image:
        return np.array(image.convert("RGB"))


#: An 8-bit picture (H,W,3) and (height, width) -> the picture in that size.
Resampler = Callable[[np.ndarray, tuple[int, int]], np.ndarray]
#: Those that read few of the pixels of a large picture (docs/resizer_audit.md).
OPEN = ("OpenCV linear", "OpenCV cubic", "torch bilinear", "torch bicubic", "OpenCV nearest", "Pillow nearest")
_PILLOW = ("bicubic", "bilinear", "lanczos", "nearest")
_OPENCV = ("area", "linear", "cubic", "nearest")
_TORCH = ("bilinear", "bicubic")


def at_ratios(resizes: Mapping[str, Resampler], ratios: Sequence[float]) -> dict[str, Resampler]:
    """The resamplers at each size times a ratio: "OpenCV cubic x0.95", at 1 "OpenCV cubic". "none" has no size."""
    return {
        name if ratio == 1 else f"{name} x{ratio:g}": resize if ratio == 1 else partial(_scaled, resize, ratio)
        for ratio in ratios
        for name, resize in resizes.items()
        if ratio == 1 or name != "none"
    }


def _scaled(resize: Resampler, ratio: float, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return resize(pixels, size_at(ratio, (pixels.shape[0], pixels.shape[1]), size))


def size_at(ratio: float, source: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) at a ratio of the `size` to which a picture `source` is resized. Where `size` keeps the
    aspect, the shorter side is multiplied, and the longer one follows from it, rounded as in `size`: with a pixel
    more, the resize would read other pixels."""
    short = max(1, round(ratio * min(size)))
    for rounded in (int, round):
        if size == target_size(source, min(size), rounded):
            return target_size(source, short, rounded)
    return max(1, round(ratio * size[0])), max(1, round(ratio * size[1]))


def resamplers() -> tuple[dict[str, Resampler], list[str]]:
    """The resamplers by name, "none" first (only the encoder resizes), and a line for each missing library."""
    available: dict[str, Resampler] = {"none": lambda pixels, _size: pixels}
    missing: list[str] = []
    available |= {f"Pillow {name}": library_call(f"pil_{name}") for name in _PILLOW}
    try:
        available |= {f"OpenCV {name}": library_call(f"cv2_{name}") for name in _OPENCV}
    except ValueError as error:
        missing.append(f"{', '.join(f'OpenCV {name}' for name in _OPENCV)}: {error}")
    available |= {f"torch antialiased {name}": library_call(f"torch_{name}_aa") for name in _TORCH}
    available |= {f"torch {name}": library_call(f"torch_{name}") for name in _TORCH}
    return available, missing


def library_call(kernel: str) -> Resampler:
    """The library's own 8-bit call of a kernel of `transforms.resizing.kernels.NAMES`, such as "torch_bicubic_aa".
    Raises ValueError where the library is not installed."""
    library, _, name = kernel.partition("_")
    if library == "pil":
        return partial(_pillow, Image.Resampling[name.upper()])
    if library == "cv2":
        return partial(_opencv, extra("cv2"), f"INTER_{name.upper()}")
    return partial(_torch, name.removesuffix("_aa").replace("_", "-"), name.endswith("_aa"))


def _pillow(kernel: Image.Resampling, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.array(Image.fromarray(pixels).resize(size[::-1], kernel))


def _opencv(cv2: Any, flag: str, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=getattr(cv2, flag)))


def _torch(mode: str, antialias: bool, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    corners = None if "nearest" in mode else False
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(images, size, mode=mode, antialias=antialias, align_corners=corners)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())


#: How the record of a run begins the name of a function, which no directory holds.
GIVEN = "given in Python: "


@dataclass(frozen=True)
class Pipeline:
    """A preprocessing of 8-bit pictures (H,W,3) of one size.

    Attributes:
        name: of a kernel; of a function, `function_name`.
        function: a picture -> what the pipeline makes of it, 8-bit (h,w,3).
        size: (h, w).
        window: rows and columns of the result that depend on the picture; the others are padding.
        box: left, top, right and bottom of the part of the picture that the window shows, in pixels.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    size: tuple[int, int]
    window: tuple[slice, slice]
    box: tuple[float, float, float, float]

    def views(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it makes of a picture, and the same with Pillow's Lanczos in place of its resize."""
        view = self.function(picture)
        reference, (rows, columns) = view.copy(), self.window
        size = (columns.stop - columns.start, rows.stop - rows.start)
        reference[self.window] = Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS, box=self.box)
        return view, reference


def kernel_pipeline(kernel: str, source: tuple[int, int], size: tuple[int, int]) -> Pipeline:
    """The library's own resize of pictures of (height, width) `source` to `size`, by the name of its kernel. Raises
    ValueError where the library is not installed."""
    window, call = (slice(0, size[0]), slice(0, size[1])), library_call(kernel)
    return Pipeline(kernel, lambda picture: call(picture, size), size, window, (0, 0, source[1], source[0]))


def function_name(function: Callable[[Any], Any]) -> str:
    """The name of a function for the record of a run."""
    source = function if hasattr(function, "__qualname__") else type(function)
    return f"{GIVEN}{source.__module__}.{source.__qualname__}"


def function_pipeline(function: Callable[[Any], Any], source: tuple[int, int]) -> Pipeline:
    """A function as `viewproof audit --resizers --callable` takes it, on pictures of (height, width) `source`: what
    it crops or pads is measured. Raises ValueError where it takes or returns something else, is random, or fails."""
    box = open_box(function, source, "pipeline")
    values = measure_values(box, source)
    full_values = replace(values, window=(slice(None), slice(None)))

    def to_levels(picture: np.ndarray) -> np.ndarray:
        levels = full_values.levels(box(picture)).clip(0, 255)
        return np.broadcast_to(np.rint(levels), (*levels.shape[:2], 3)).astype(np.uint8)

    prober = Prober(box, values, source)
    ends = [_visible_part(fit_line(prober, axis), source[axis], values.window[axis]) for axis in (0, 1)]
    (top, bottom), (left, right) = ends
    height, width = to_levels(np.zeros((*source, 3), np.uint8)).shape[:2]
    return Pipeline(function_name(function), to_levels, (height, width), values.window, (left, top, right, bottom))


def _visible_part(line: ProbeLine, length: int, window: slice) -> tuple[float, float]:
    """The part of an axis that a window shows; the whole where less than an output pixel is missing at each end."""
    low, high = line.shift, float(line.shift + line.scale * (window.stop - window.start))
    if line.scale <= 0 or (low < line.scale and high > length - line.scale):
        return 0.0, float(length)
    return max(0.0, low), min(float(length), high)
