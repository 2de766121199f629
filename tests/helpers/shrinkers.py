"""Preprocessings made of the libraries' resizers, as a black box is given them: an 8-bit array (H,W,3) in."""

import numpy as np
import torch

from tests.helpers.resizers import OPENCV, PILLOW, TORCH, by_opencv, by_pillow, by_torch

KERNELS = [*PILLOW, *OPENCV, *TORCH]


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
