"""Every stage by name: what a configuration may ask for, and what the laws of `tests/test_laws.py` run over."""

from __future__ import annotations

from transforms.bend import Lens, RollingShutter, ThinPlate
from transforms.blur import Defocus, GaussianBlur, MotionBlur
from transforms.choice import OneOf, Sometimes
from transforms.codec import Jpeg, Webp
from transforms.cylinder import Cylinder
from transforms.downscale import Downscale
from transforms.geometry import Affine, Crop, Flip, Perspective
from transforms.illumination import Moire, Shading, Shadow, Vignette
from transforms.light import Exposure, WhiteBalance
from transforms.occlusion import Cutout
from transforms.photometric import Brightness, ChannelGain, Contrast, Gain, Gamma, Hue, Saturation
from transforms.resize_pad import ResizePad
from transforms.sensor import Quantise, SensorNoise
from transforms.viewpoint import Viewpoint

STAGES: dict[str, type] = {
    # geometry: fuses into one resample
    "affine": Affine,
    "perspective": Perspective,
    "viewpoint": Viewpoint,
    "crop": Crop,
    "flip": Flip,
    "lens": Lens,
    "cylinder": Cylinder,
    "thin_plate": ThinPlate,
    "rolling_shutter": RollingShutter,
    # choices; they fuse where their stages do
    "sometimes": Sometimes,
    "one_of": OneOf,
    # colour and light
    "brightness": Brightness,
    "contrast": Contrast,
    "gain": Gain,
    "channel_gain": ChannelGain,
    "gamma": Gamma,
    "saturation": Saturation,
    "hue": Hue,
    "exposure": Exposure,
    "white_balance": WhiteBalance,
    "vignette": Vignette,
    "shading": Shading,
    "shadow": Shadow,
    "moire": Moire,
    "cutout": Cutout,
    # camera and file
    "gaussian_blur": GaussianBlur,
    "defocus": Defocus,
    "motion_blur": MotionBlur,
    "sensor_noise": SensorNoise,
    "quantise": Quantise,
    "jpeg": Jpeg,
    "webp": Webp,
    # size
    "downscale": Downscale,
    "resize_pad": ResizePad,
}
