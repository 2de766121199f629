"""Views of images: differentiable, antialiased, resampled once.

Legend. N images or views, C channels, H, W. Images are floating NCHW in [0,1]. Pixel frame: integer = pixel centre
(OpenCV's). Stage frame: origin at the image centre, unit = half the shorter side, x right, y down, positive angles
clockwise as displayed. A view is a point `u` (N,dims) of the unit cube; its physical values have units
(`pipeline.describe(u)`).
"""

from transforms.auditing.audit import audit
from transforms.camera.blur import Defocus, GaussianBlur, MotionBlur
from transforms.camera.codec import Jpeg, Webp, jpeg, webp
from transforms.camera.downscale import Downscale
from transforms.camera.resize_pad import ResizePad
from transforms.camera.sensor import Quantise, SensorNoise, quantise
from transforms.choice import OneOf, Sometimes
from transforms.colour.cutout import Cutout
from transforms.colour.exposure import Exposure, WhiteBalance
from transforms.colour.illumination import Moire, Shading, Shadow, Vignette
from transforms.colour.photometric import Brightness, ChannelGain, Contrast, Gain, Gamma, Hue, Saturation
from transforms.compat import affine, perspective, rotate, warp_affine, warp_perspective
from transforms.compose import Compose, Geometry, Homography, Stage
from transforms.draws import Antithetic, Draws, Fixed, Grid, Latin, Sobol, Uniform, stream
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.cylinder import Cylinder
from transforms.geometry.distortion import Lens, RollingShutter, ThinPlate
from transforms.geometry.placement import Placement
from transforms.geometry.viewpoint import Viewpoint
from transforms.on_layers import OnLayers
from transforms.resizing.resize import resize
from transforms.sampling.homography import homography
from transforms.scene import Layer, Scene, Shown, base_of, scene_of, taken
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
    "Placement",
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
