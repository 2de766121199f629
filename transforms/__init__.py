"""Views of images: differentiable, antialiased, resampled once.

Legend. N images or views, C channels, H, W. Images are floating NCHW in [0,1]. Pixel frame: integer = pixel centre
(OpenCV's). Stage frame: origin at the image centre, unit = half the shorter side, x right, y down, positive angles
clockwise as displayed. A view is a point `u` (N,dims) of the unit cube; its physical values have units
(`pipeline.describe(u)`).
"""

from transforms.base import Compose, Geometry, Homography, Layer, Scene, Stage, scene_of
from transforms.compat import perspective, warp_affine, warp_perspective
from transforms.downscale import Downscale
from transforms.draws import Draws, Grid, Sobol, Uniform, stream
from transforms.geometry import Affine, Perspective
from transforms.homography import homography
from transforms.photometric import Brightness, Contrast
from transforms.resize import resize

__all__ = [
    "Affine",
    "Brightness",
    "Compose",
    "Contrast",
    "Downscale",
    "Draws",
    "Geometry",
    "Grid",
    "Homography",
    "Layer",
    "Perspective",
    "Scene",
    "Sobol",
    "Stage",
    "Uniform",
    "homography",
    "perspective",
    "resize",
    "scene_of",
    "stream",
    "warp_affine",
    "warp_perspective",
]
