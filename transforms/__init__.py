"""Views of images: differentiable, antialiased, resampled once.

Legend. N images or views, C channels, H, W. Images are floating NCHW in [0,1]. Pixel frame: integer = pixel centre
(OpenCV's). Stage frame: origin at the image centre, unit = half the shorter side, x right, y down, positive angles
clockwise as displayed. A view is a point `u` (N,dims) of the unit cube; its physical values have units
(`pipeline.describe(u)`).
"""

from transforms.audit import audit
from transforms.base import Compose, Geometry, Homography, Stage
from transforms.bend import Lens, RollingShutter, ThinPlate
from transforms.blur import Defocus, GaussianBlur, MotionBlur
from transforms.choice import OneOf, Sometimes
from transforms.codec import Jpeg, Webp, jpeg, webp
from transforms.compat import affine, perspective, rotate, warp_affine, warp_perspective
from transforms.cylinder import Cylinder
from transforms.downscale import Downscale
from transforms.draws import Antithetic, Draws, Fixed, Grid, Latin, Sobol, Uniform, stream
from transforms.geometry import Affine, Crop, Flip, Perspective
from transforms.homography import homography
from transforms.illumination import Moire, Shading, Shadow, Vignette
from transforms.layered import OnLayers
from transforms.light import Exposure, WhiteBalance
from transforms.occlusion import Cutout
from transforms.photometric import Brightness, ChannelGain, Contrast, Gain, Gamma, Hue, Saturation
from transforms.placement import Place
from transforms.resize import resize
from transforms.resize_pad import ResizePad
from transforms.scene import Layer, Scene, Shown, base_of, scene_of, taken
from transforms.sensor import Quantise, SensorNoise, quantise
from transforms.viewpoint import Viewpoint
from transforms.widen import widened

__all__ = [
    "Affine",
    "Antithetic",
    "Brightness",
    "ChannelGain",
    "Compose",
    "Contrast",
    "Crop",
    "Cutout",
    "Cylinder",
    "Defocus",
    "Downscale",
    "Draws",
    "Exposure",
    "Fixed",
    "Flip",
    "Gain",
    "Gamma",
    "GaussianBlur",
    "Geometry",
    "Grid",
    "Homography",
    "Hue",
    "Jpeg",
    "Latin",
    "Layer",
    "Lens",
    "Moire",
    "MotionBlur",
    "OnLayers",
    "OneOf",
    "Perspective",
    "Place",
    "Quantise",
    "ResizePad",
    "RollingShutter",
    "Saturation",
    "Scene",
    "SensorNoise",
    "Shading",
    "Shadow",
    "Shown",
    "Sobol",
    "Sometimes",
    "Stage",
    "ThinPlate",
    "Uniform",
    "Viewpoint",
    "Vignette",
    "Webp",
    "WhiteBalance",
    "affine",
    "audit",
    "base_of",
    "homography",
    "jpeg",
    "perspective",
    "quantise",
    "resize",
    "rotate",
    "scene_of",
    "stream",
    "taken",
    "warp_affine",
    "warp_perspective",
    "webp",
    "widened",
]
