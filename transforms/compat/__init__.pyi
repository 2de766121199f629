from .drop_ins import affine as affine, perspective as perspective, resize as resize, rotate as rotate
from .drop_ins import warp_affine as warp_affine, warp_perspective as warp_perspective
