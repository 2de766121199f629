"""Perturbations from a configuration: a ball, and what it is held to; or a patch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from attacks.schema import groups as choices, patch as choices_physical, validate as schema
from attacks.perturbations.ball import L2, Ball, Linf
from attacks.data.images import load_image
from attacks.eot.protocols import Perturbation
from attacks.experiment.build.patch import patch
from attacks.perturbations.universal import Universal
from attacks.perturbations.patch.placement import Placements
from attacks.perturbations.subspace import Grey, Masked
from attacks.perturbations.sparse import L0, L1
from attacks.perturbations.spectral import LowFrequency, Smoothed

_BALLS: dict[str, Callable[[float], Ball]] = {"linf": Linf, "l2": L2, "l1": L1}


def perturb(
    node: choices.Ball | choices_physical.Patch, images: Tensor, placements: Placements | None = None
) -> Perturbation:
    """The perturbation that a configuration names, for pictures (N,3,H,W), and the `placements` that they have for a
    patch. Raises ValueError or FileNotFoundError."""
    if isinstance(node, choices_physical.Patch):
        return patch(node, images, placements)
    eps = schema.fraction(node.eps, "perturbation.eps")
    if node.name == "l0":
        if eps != int(eps):
            raise ValueError(f"`perturbation.eps` of l0 is a whole number of pixels; got {node.eps}")
        own: Ball = L0(int(eps))
    else:
        own = _BALLS[node.name](eps)
    if node.grey:
        own = Grey(own)
    if node.keep is not None:
        own = LowFrequency(own, node.keep)
    if node.mask is not None:
        own = Masked(own, _mask(node.mask, images))
    if node.smooth is not None:
        own = Smoothed(own, node.smooth)
    return Universal(own) if node.shared else own


def _mask(path: str, images: Tensor) -> Tensor:
    """(1,1,H,W) of zeros and ones: where the picture at `path` is lighter than mid-grey."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"`perturbation.mask` must be a picture; there is none at {path!r}")
    light = load_image(path)[0].mean(0)
    if light.shape != images.shape[2:]:
        raise ValueError(
            f"`perturbation.mask` must be as large as the attacked pictures, {images.shape[3]}x{images.shape[2]}; "
            f"{path} is {light.shape[1]}x{light.shape[0]}"
        )
    return (light > 0.5).to(images)[None, None]
