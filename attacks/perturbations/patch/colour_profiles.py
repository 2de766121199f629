"""Reads the colour map of a printer from an untrusted file, as a table (see `transforms.colour.lut`)."""

import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageCms
from torch import Tensor

from attacks.perturbations.patch.inks import generic
from transforms.colour.lut import NODES, nodes, powers, sampled, terms
from transforms.colour.spaces import to_linear, to_srgb

#: Most bytes of a file; printer profiles have 0.1 to 4 million.
MAX_BYTES = {".icc": 2**24, ".icm": 2**24, ".json": 2**16}
#: Intent -> rendering intents to the printer's colours, and back to the screen.
INTENTS = {
    "relative": (ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Intent.RELATIVE_COLORIMETRIC),
    "perceptual": (ImageCms.Intent.PERCEPTUAL, ImageCms.Intent.RELATIVE_COLORIMETRIC),
    "absolute": (ImageCms.Intent.ABSOLUTE_COLORIMETRIC, ImageCms.Intent.ABSOLUTE_COLORIMETRIC),
}


def read_colour_map(name: str, intent: str = "relative", key: str = "printer.colour") -> Tensor | None:
    """The table (3,n,n,n) from requested to printed sRGB; None for an ideal printer.

    `name` is ideal, generic (see `attacks.perturbations.patch.inks`), or the path of an ICC profile (.icc, .icm) or a
    fitted polynomial (.json, see `ColourFit.to_dict`). `intent`, of an ICC profile only, is relative (the paper is
    white), perceptual, or absolute (the paper's own colour). `key` is for messages.

    Raises ValueError or FileNotFoundError: an unknown name or intent, or a file that is missing or invalid.
    """
    if intent not in INTENTS:
        raise ValueError(f"`printer.intent` must be one of {', '.join(INTENTS)}; got {intent!r}")
    suffix = Path(name).suffix.lower()
    if intent != "relative" and suffix not in (".icc", ".icm"):
        raise ValueError(f"`printer.intent={intent}` is for an ICC profile; {name!r} has no intents")
    if name in ("ideal", "generic"):
        return None if name == "ideal" else generic()
    if suffix not in MAX_BYTES:
        raise ValueError(f"`{key}` must be ideal, generic, or a file {', '.join(MAX_BYTES)}; got {name!r}")
    if not Path(name).is_file():
        raise FileNotFoundError(f"`{key}`: there is no file {name!r} (paths are relative to {Path.cwd()})")
    with Path(name).open("rb") as file:
        content = file.read(MAX_BYTES[suffix] + 1)
    try:
        if len(content) > MAX_BYTES[suffix]:
            raise ValueError(f"more than {MAX_BYTES[suffix]} bytes")
        return _polynomial(content) if suffix == ".json" else _profile(content, intent)
    except (ValueError, OSError, OverflowError, RecursionError, ImageCms.PyCMSError) as error:
        raise ValueError(
            f"`{key}`: {name} is not a {suffix} that can be used: {' '.join(str(error).split())}"
        ) from None


def _polynomial(content: bytes) -> Tensor:
    """A polynomial of red, green and blue: of each channel the weights of the monomials, in the order of `powers`."""
    data = json.loads(content)
    if not isinstance(data, dict) or data.get("schema") != 1 or data.get("kind") != "polynomial":
        raise ValueError('it must hold {"schema": 1, "kind": "polynomial", ...}')
    degree, rows, light = (data.get(key) for key in ("degree", "coefficients", "light"))
    if type(degree) is not int or not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise ValueError("it needs a `degree` and three lists of `coefficients`")
    if len(rows) != 3 or any(len(row) != len(powers(degree)) for row in rows):
        raise ValueError(f"`coefficients` must be 3 rows of {len(powers(degree))} numbers, for degree {degree}")
    if not all(type(value) in (int, float) and abs(value) <= 1e4 for row in rows for value in row):
        raise ValueError("`coefficients` must be numbers of at most 10000")
    if light not in ("linear", "srgb"):
        raise ValueError(f"`light` must be linear or srgb; got {light!r}")
    weights = torch.tensor(rows, dtype=torch.float64)
    if light == "srgb":
        return sampled(lambda colours: terms(colours, degree) @ weights.T)
    return linear_polynomial(weights, degree)


def linear_polynomial(weights: Tensor, degree: int) -> Tensor:
    """The table of a polynomial in linear light, of `weights` (3,K)."""
    return sampled(lambda colours: to_srgb(terms(to_linear(colours), degree) @ weights.T))


def _profile(content: bytes, intent: str) -> Tensor:
    """A soft proof: sRGB to the printer's colours, with black point compensation, and back, as in layout programs."""
    to_printer, back = INTENTS[intent]
    profile, screen = ImageCms.ImageCmsProfile(io.BytesIO(content)), ImageCms.createProfile("sRGB")
    kind, space = profile.profile.device_class.strip(), profile.profile.xcolor_space.strip()
    if kind not in ("prtr", "mntr") or space not in ("RGB", "CMYK", "GRAY"):
        raise ValueError(f"it must be of a printer or a screen, in RGB, CMYK or grey; it is a {kind} in {space}")
    exact, black = ImageCms.Flags.NOOPTIMIZE, ImageCms.Flags.BLACKPOINTCOMPENSATION
    if profile.profile.is_matrix_shaper:  # a proof transform of LittleCMS would pass colours that the device lacks
        steps = [
            ImageCms.buildTransform(screen, profile, "RGB", "RGB", to_printer, exact | black),
            ImageCms.buildTransform(profile, screen, "RGB", "RGB", back, exact),
        ]
    else:
        flags = exact | black | ImageCms.Flags.SOFTPROOFING
        steps = [ImageCms.buildProofTransform(screen, screen, profile, "RGB", "RGB", to_printer, back, flags)]
    grid = Image.fromarray((nodes() * 255).round().to(torch.uint8).reshape(NODES, -1, 3).numpy())
    for step in steps:
        grid = step.apply(grid)
    table = torch.from_numpy(np.array(grid)).reshape(NODES, NODES, NODES, 3)
    return table.permute(3, 0, 1, 2).float() / 255
