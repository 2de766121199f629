"""What a platform resizes a picture with: each library's own call on 8-bit pixels, not our model of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

#: A picture (H,W,3) of 8 bits, and (height, width) -> the picture in that size.
Resampler = Callable[[np.ndarray, tuple[int, int]], np.ndarray]

#: The picture as it is: whatever resize the encoder begins with is the only one.
NONE = "none"
_PILLOW = ("bicubic", "bilinear", "lanczos")
_OPENCV = ("area", "linear", "cubic")
_TORCH = ("bilinear", "bicubic")


def resamplers() -> tuple[dict[str, Resampler], list[str]]:
    """The resamplers by name, "none" first, and what is missing here, in words."""
    found: dict[str, Resampler] = {NONE: lambda pixels, _size: pixels}
    missing: list[str] = []
    found |= {f"Pillow {name}": partial(_pillow, Image.Resampling[name.upper()]) for name in _PILLOW}
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError:
        names = ", ".join(f"OpenCV {name}" for name in _OPENCV)
        missing.append(f'{names}: OpenCV cannot be imported (pip install "viewproof[physical]")')
    else:
        found |= {f"OpenCV {name}": partial(_opencv, cv2, f"INTER_{name.upper()}") for name in _OPENCV}
    found |= {f"torch antialiased {name}": partial(_torch, name) for name in _TORCH}
    return found, missing


def _pillow(kernel: Image.Resampling, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.array(Image.fromarray(pixels).resize(size[::-1], kernel))


def _opencv(cv2: Any, flag: str, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    resized: np.ndarray = cv2.resize(pixels, size[::-1], interpolation=getattr(cv2, flag))
    return resized


def _torch(mode: str, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(images, size, mode=mode, antialias=True, align_corners=False)
    return np.ascontiguousarray(resized[0].permute(1, 2, 0).numpy())
