"""The resizers of Pillow, OpenCV and torch, by our names for their kernels."""

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

PILLOW = [f"pil_{name}" for name in ("nearest", "box", "bilinear", "bicubic", "lanczos")]
OPENCV = [f"cv2_{name}" for name in ("nearest", "linear", "cubic", "area", "lanczos4")]
TORCH = [f"torch_{name}" for name in ("bilinear", "bicubic", "bilinear_aa", "bicubic_aa", "nearest", "nearest_exact")]
KERNELS = [*PILLOW, *OPENCV, *TORCH]
# Of an image of 80 x 120: halves, thirds and broken ratios, down, up, one axis alone, one of either; (31, 150) and
# (6, 90) are those that Pillow shrinks rows first in 8 bits.
SIZES = [(40, 60), (20, 40), (27, 41), (79, 119), (160, 240), (93, 131), (80, 53)]
SIZES += [(113, 120), (31, 150), (150, 31), (6, 90), (80, 120), (1, 1)]


def by_pillow(array, size, kernel):
    """(H,W) of float32 or uint8, or (H,W,3) of uint8 -> the same at `size` (height, width)."""
    name = kernel.removeprefix("pil_").upper()
    return np.asarray(Image.fromarray(array).resize(size[::-1], Image.Resampling[name]))


def by_opencv(array, size, kernel):
    """(H,W) or (H,W,C) -> the same at `size`."""
    flag = getattr(cv2, "INTER_" + kernel.removeprefix("cv2_").upper())
    return cv2.resize(array, size[::-1], interpolation=flag).reshape(*size, *array.shape[2:])


def by_torch(images, size, kernel):
    """(N,C,H,W) -> (N,C,*size)."""
    mode = kernel.removeprefix("torch_").removesuffix("_aa").replace("_", "-")
    corners = None if "nearest" in mode else False
    return F.interpolate(images, size, mode=mode, antialias=kernel.endswith("_aa"), align_corners=corners)


def shrinker(kernel, out, floating=False):
    """The library's own call to `out` (height, width) in 8 bits, (h,w,3), or in floating point, (3,h,w), 0 to 255."""

    def by_library(array):
        if kernel in TORCH:
            images = torch.from_numpy(array).permute(2, 0, 1)[None]
            images = images.float() if floating else images.contiguous(memory_format=torch.channels_last)
            result = by_torch(images, out, kernel)[0]
            return result if floating else result.permute(1, 2, 0).numpy()
        library = by_pillow if kernel in PILLOW else by_opencv
        if not floating:
            return library(array, out, kernel)
        planes = np.ascontiguousarray(array.transpose(2, 0, 1)).astype(np.float32)
        return np.stack([library(plane, out, kernel) for plane in planes])

    return by_library
