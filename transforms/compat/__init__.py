"""The functional layer: the arguments and the meaning of OpenCV and torchvision, with gradients to every tensor."""

from transforms.compat.opencv import warp_affine, warp_perspective
from transforms.compat.torchvision import affine, perspective, resize, rotate

__all__ = ["affine", "perspective", "resize", "rotate", "warp_affine", "warp_perspective"]
