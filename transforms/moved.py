"""The names that a package handed out before and a room does now. Each works for one more version, with a warning."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import lazy_loader  # type: ignore[import-untyped]

#: The rooms, each with its names.
ROOMS = {
    "attacks.encoders": "Bpda Defended Features Layers Stochastic layer_shapes named_layers randomised",
    "attacks.eot": "Adaptive Estimate Mean",
    "attacks.evaluation": "examine layer_drift mean_embedding",
    "attacks.inference": "rate",
    "attacks.objectives": """
        DLR Each InfoNCE LPIPS Members Paired Penalties SSIM Sum Term TotalVariation Triplet Verification""",
    "attacks.optimisers": "LabelOnly Square",
    "attacks.perturbations": "Grey L1 LowFrequency Masked Smoothed",
    "attacks.solvers": "Adversary Best Step",
    "transforms.camera": """
        Defocus GaussianBlur MedianPool MotionBlur PixelCrop Quantise ResizePad SensorNoise Webp quantise webp""",
    "transforms.colour": """
        ChannelGain Cutout Exposure Gain Gamma Hue Moire Saturation Shading Shadow Vignette WhiteBalance""",
    "transforms.compat": "affine rotate",
    "transforms.compose": "Geometry Homography",
    "transforms.draws": "Antithetic Draws Fixed Grid Latin Uniform stream",
    "transforms.geometry": "Crop Cylinder Flip Lens Placement RollingShutter ThinPlate",
    "transforms.scene": "Layer Scene Shown base_of scene_of taken",
    "transforms.wrappers": "OnLayers OneOf Sometimes widened",
}
#: Each old name, such as `attacks.InfoNCE`, with its room.
NEW_ROOMS = {f"{room.partition('.')[0]}.{name}": room for room, names in ROOMS.items() for name in names.split()}


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: the names of its stub, and those that have moved."""
    public, names, exports = lazy_loader.attach_stub(package, file)

    def attribute(name: str) -> Any:
        if (room := NEW_ROOMS.get(f"{package}.{name}")) is None:
            return public(name)
        advice = f"`{package}.{name}` goes with the next version: write `from {room} import {name}`"
        warnings.warn(advice, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(room), name)

    return attribute, names, exports
