"""Every stage by name: what a configuration may ask for, and what the laws of `tests/test_laws.py` run over."""

from __future__ import annotations

from transforms.downscale import Downscale
from transforms.geometry import Affine, Perspective
from transforms.photometric import Brightness, Contrast

STAGES: dict[str, type] = {
    # geometry: fuses into one resample
    "affine": Affine,
    "perspective": Perspective,
    # colour and light
    "brightness": Brightness,
    "contrast": Contrast,
    # size
    "downscale": Downscale,
}
