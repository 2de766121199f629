from .opencv import warp_affine as warp_affine, warp_perspective as warp_perspective
from .torchvision import affine as affine, perspective as perspective, resize as resize, rotate as rotate
