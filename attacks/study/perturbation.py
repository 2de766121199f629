"""The configured perturbation: a ball with its restrictions, or a patch."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from attacks.data.images import load_image
from attacks.eot.protocols import Perturbation
from attacks.perturbations.ball import L2, Ball, Linf
from attacks.perturbations.patch.placement import Placements
from attacks.perturbations.sparse import L0, L1
from attacks.perturbations.subspace import Grey, LowFrequency, Masked, Smoothed
from attacks.perturbations.universal import Universal
from attacks.schema import validate as schema
from attacks.schema.groups import PatchConfig
from attacks.schema.validate import Run
from attacks.study.make import make
from attacks.study.patch import patch, patch_id

BALLS: dict[str, type[Ball]] = {"linf": Linf, "l2": L2, "l1": L1, "l0": L0}
#: Key -> the set that it wraps around the ball, from the inside out. A switch has no argument.
WRAPPERS: dict[str, Callable[..., Any]] = {
    "grey": Grey,
    "keep": LowFrequency,
    "mask": Masked,
    "smooth": Smoothed,
    "shared": Universal,
}


def perturb(run: Run, images: Tensor, placements: Placements | None = None) -> Perturbation:
    """The configured perturbation for pictures (N,3,H,W) with their `placements` of a patch. Raises ValueError or
    FileNotFoundError."""
    node = run.perturbation
    if isinstance(node, PatchConfig):
        return patch(node, images, patch_id(run), placements)
    eps = radius_of(node.eps, images) if node.name == "l2" else schema.fraction(node.eps, "perturbation.eps")
    ball: Any = make(BALLS[node.name], node, "perturbation", eps=eps)
    for key, wrapper in WRAPPERS.items():
        value = getattr(node, key)
        if value is not None and value is not False:
            values = {"mask": _mask(value, images)} if key == "mask" else {}
            ball = make(wrapper, node, "perturbation", inner=ball, **values)
    return ball  # type: ignore[no-any-return]


def radius_of(text: str, images: Tensor) -> float:
    """The L2 radius of a number, or of the least PSNR in dB of each picture (N,C,H,W): "28dB" is a mean square of
    10^-2.8. Raises ValueError."""
    decibels = str(text).removesuffix("dB")
    number = schema.fraction(decibels, "perturbation.eps")
    return number if decibels == str(text) else math.sqrt(images[0].numel()) * 10 ** (-number / 20)


def _mask(path: str, images: Tensor) -> Tensor:
    """(1,1,H,W): 1 where the picture at `path` is lighter than mid-grey, else 0."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"`perturbation.mask` must be a picture; there is none at {path!r}")
    light = load_image(path)[0].mean(0)
    if light.shape != images.shape[2:]:
        raise ValueError(
            f"`perturbation.mask` must be as large as the attacked pictures, {images.shape[3]}x{images.shape[2]}; "
            f"{path} is {light.shape[1]}x{light.shape[0]}"
        )
    return (light > 0.5).to(images)[None, None]
