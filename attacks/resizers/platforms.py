"""Codecs and resamplers of other programs: each library's own call on 8-bit pixels."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, features

from attacks.runtime.extras import extra
from transforms.resizing.resize import target_size

#: An 8-bit picture (H,W,3) -> the picture as read back from a file.
Codec = Callable[[np.ndarray], np.ndarray]
#: Codec -> the format's name and options. 80 is Pillow's default quality of WebP.
_FORMATS: dict[str, tuple[str, dict[str, int]]] = {
    "PNG": ("PNG", {}),
    "JPEG 95": ("JPEG", {"quality": 95}),
    "JPEG 90": ("JPEG", {"quality": 90}),
    "JPEG 75": ("JPEG", {"quality": 75}),
    "JPEG 50": ("JPEG", {"quality": 50}),
    "WebP 80": ("WEBP", {"quality": 80}),
}


def codecs() -> tuple[dict[str, Codec], list[str]]:
    """The codecs by name, and a line for each that is not installed."""
    available: dict[str, Codec] = {
        name: partial(through_codec, kind=kind, options=options) for name, (kind, options) in _FORMATS.items()
    }
    if features.check("webp"):
        return available, []
    del available["WebP 80"]
    return available, ["WebP 80: this Pillow was built without WebP; Pillow's own wheels have it"]


def through_codec(pixels: np.ndarray, kind: str, options: Mapping[str, int]) -> np.ndarray:
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


def size_at(ratio: float, whole: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) at a ratio of the `size` to which a picture `whole` is resized. Where `size` keeps the
    aspect, the shorter side is multiplied, and the longer one follows from it, rounded as in `size`: with a pixel
    more, the resize reads other pixels."""
    short = max(1, round(ratio * min(size)))
    for rounded in (int, round):
        if size == target_size(whole, min(size), rounded):
            return target_size(whole, short, rounded)
    return max(1, round(ratio * size[0])), max(1, round(ratio * size[1]))


def resamplers() -> tuple[dict[str, Resampler], list[str]]:
    """The resamplers by name, "none" first (only the encoder resizes), and a line for each missing library."""
    available: dict[str, Resampler] = {"none": lambda pixels, _size: pixels}
    missing: list[str] = []
    available |= {f"Pillow {name}": partial(_pillow, Image.Resampling[name.upper()]) for name in _PILLOW}
    try:
        cv2 = extra("cv2")
    except ValueError as error:
        names = ", ".join(f"OpenCV {name}" for name in _OPENCV)
        missing.append(f"{names}: {error}")
    else:
        available |= {f"OpenCV {name}": partial(_opencv, cv2, f"INTER_{name.upper()}") for name in _OPENCV}
    available |= {f"torch antialiased {name}": partial(_torch, name, True) for name in _TORCH}
    available |= {f"torch {name}": partial(_torch, name, False) for name in _TORCH}
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
    resized: np.ndarray = cv2.resize(pixels, size[::-1], interpolation=getattr(cv2, flag))
    return resized


def _torch(mode: str, antialias: bool, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(
        images, size, mode=mode, antialias=antialias, align_corners=None if "nearest" in mode else False
    )
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())
