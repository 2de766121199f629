"""Every stage by name: what a configuration may ask for, and what the laws of the tests run over."""

import importlib
import re

#: The stages of each room. In a configuration `ThinPlate` is `thin_plate`.
ROOMS = {
    "geometry": "Affine Perspective Viewpoint Crop Flip Lens Cylinder ThinPlate RollingShutter",
    "wrappers": "Sometimes OneOf",
    "colour": """
        Brightness Contrast Gain ChannelGain Gamma Saturation Hue Exposure WhiteBalance Vignette Shading Shadow Moire
        Cutout""",
    "camera": """
        GaussianBlur Defocus MotionBlur SensorNoise Quantise Jpeg Webp Downscale ResizePad PixelCrop MedianPool""",
}
STAGES: dict[str, type] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): getattr(importlib.import_module(f"transforms.{room}"), name)
    for room, names in ROOMS.items()
    for name in names.split()
}
