"""Every stage by name: what a configuration may ask for, and what the laws of the tests run over."""

from transforms.camera.blur import Defocus, GaussianBlur, MotionBlur
from transforms.camera.codec import Jpeg, Webp
from transforms.camera.downscale import Downscale
from transforms.camera.median_pool import MedianPool
from transforms.camera.pixel_crop import PixelCrop
from transforms.camera.resize_pad import ResizePad
from transforms.camera.sensor import Quantise, SensorNoise
from transforms.colour.cutout import Cutout
from transforms.colour.exposure import Exposure, WhiteBalance
from transforms.colour.illumination import Moire, Shading, Shadow, Vignette
from transforms.colour.photometric import Brightness, ChannelGain, Contrast, Gain, Gamma, Hue, Saturation
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.cylinder import Cylinder
from transforms.geometry.distortion import Lens, RollingShutter, ThinPlate
from transforms.geometry.viewpoint import Viewpoint
from transforms.wrappers.choice import OneOf, Sometimes

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
    "pixel_crop": PixelCrop,
    "median_pool": MedianPool,
}
