"""Penalties on the visibility of a perturbation, computed once a step, without views, and added to the loss.

A penalty is its weight times a mean over pixels or windows, so that a weight suits pictures of any size.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.eot.estimate import Estimate
from attacks.eot.problem import Problem
from attacks.eot.protocols import Penalty
from attacks.runtime.extras import extra
from attacks.schema.options import option
from transforms.colour.spaces import at_least_float32
from transforms.compose import seen
from transforms.devices import uploaded
from transforms.doors import check_choice

#: Width of the smooth absolute value's rounded tip: a tenth of a grey level, less than a file can hold.
EDGE = 0.1 / 255
#: LPIPS's networks, and their names in torchvision.
TRUNKS = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}


@dataclass(frozen=True)
class TotalVariation:
    """Total variation (Rudin, Osher & Fatemi 1992): smooth perturbations are cheap.

    The value is weight * the mean, over pixels and channels, of the perturbation's total variation, in [0,1] units:
    about 0.03 for a random pattern of 0 and 8/255, 0 for one flat colour.

    Differences are to the right and to the lower neighbour, none at the last column and row. Their absolute value is
    sqrt(d^2 + e^2) - e with e = `EDGE`, because `|d|` has no derivative at 0, where an attack may start. It is 0 at
    0, and at most e below `|d|`.

    Use: a print, or a change without isolated pixels.
    Not: a change that should look like the picture: `SSIM`, `LPIPS`.
    Oracle: scikit-image's denoiser, tests/objectives/test_penalties.py.

    Args:
        weight: positive; 1 to 10 beside a cosine.
        isotropic: the length of both differences together (no direction is cheaper), or the sum of their absolute
            values.
        of: "change" is the difference of the attacked and the untouched pictures, for everything that is added to a
            picture. "texture" is the delta itself, (1|N,C,h,w), for a patch, whose print should be smooth.

    Examples:
        >>> from attacks.objectives import TotalVariation
        >>> image, edge = torch.zeros(1, 1, 4, 4), torch.tensor([0.5, 0.5, 0.9, 0.9]).expand(1, 1, 4, 4)
        >>> round(TotalVariation(weight=1.0)(edge - image, edge, image).item(), 2)  # 0.4 at 4 of 16 pixels
        0.1
    """

    weight: float = option(3.0, "beside a loss that is a cosine", range="above 0", paper="Rudin et al. 1992")
    isotropic: bool = option(True, "no direction is cheaper than another")
    of: str = option("change", "change: to the picture; texture: of a patch itself", range="change, texture")

    def __post_init__(self) -> None:
        check_weight(self.weight)
        check_choice("of", self.of, ("change", "texture"))

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:
        pattern = pictures - images if self.of == "change" else delta
        return self.weight * total_variation(pattern, isotropic=self.isotropic).expand(len(images))


@dataclass(frozen=True)
class SSIM:
    """Structural similarity (Wang et al. 2004) of the attacked picture to the untouched one.

    The value is weight * (1 - SSIM): 0 where they are equal, up to 2 weight. Kornia computes it, channel by channel,
    with Gaussian windows of `window` pixels a side, odd, and a standard deviation of 1.5; its mean is over whole
    windows.

    Use: a change that keeps the structure of the picture.
    Not: pictures smaller than its window.
    Cost: a Gaussian window over each picture, once a step.
    Oracle: scikit-image, tests/objectives/test_penalties.py.

    Examples:
        >>> from attacks.objectives import SSIM
        >>> image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> [1 < SSIM(weight=1.0)(x - image, x, image).item() <= 2 for x in (image, 1 - image)]
        [False, True]
    """

    weight: float = option(
        1.0, "of 1 - SSIM, beside a loss that is a cosine", range="above 0", paper="Wang et al. 2004"
    )
    window: int = option(11, "side of the windows in pixels", range="odd, at least 3")

    def __post_init__(self) -> None:
        check_weight(self.weight)
        if type(self.window) is not int or self.window < 3 or self.window % 2 == 0:
            raise ValueError(f"`window` must be an odd number of pixels, at least 3; got {self.window!r}")

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        """(delta, (N,C,H,W), (N,C,H,W)) -> (N,). Raises ValueError where a picture is smaller than the window."""
        if min(images.shape[2:]) < self.window:
            raise ValueError(
                f"`window` must fit into the pictures; got {self.window} for {images.shape[3]}x{images.shape[2]}"
            )
        from kornia.metrics import ssim  # slow to import

        # eps=0: with kornia's default two equal black pictures have a penalty.
        similarity = ssim(at_least_float32(pictures), at_least_float32(images), self.window, eps=0.0, padding="valid")
        return self.weight * (1 - similarity.flatten(1).mean(1)).to(images.dtype)


@dataclass(frozen=True)
class LPIPS:
    """Learned perceptual distance (Zhang et al. 2018) of package `lpips`, times a weight; RGB of at least 64 pixels.

    Nothing is downloaded: the network is read from torch's cache of checkpoints, and only its linear layers come with
    the package.

    Use: a change that people should hardly notice.
    Not: a machine without its network in torch's cache: nothing is downloaded.
    Cost: a pass of its network for each picture, forward and back, once a step.
    Oracle: its own package, tests/objectives/test_penalties.py.

    Args:
        weight: positive.
        net: alex (the authors' choice for measuring), vgg, or squeeze.

    Raises:
        ValueError: no package `lpips`, or another `net`.
        FileNotFoundError: the network's file is not there.

    Examples:
        >>> from attacks.objectives import LPIPS
        >>> LPIPS(net="resnet")
        Traceback (most recent call last):
            ...
        ValueError: `net` must be one of alex, vgg, squeeze; got 'resnet'
    """

    weight: float = option(1.0, "beside a loss that is a cosine", range="above 0", paper="Zhang et al. 2018")
    net: str = option("alex", range="alex, vgg, squeeze")

    def __post_init__(self) -> None:
        check_weight(self.weight)
        check_choice("net", self.net, TRUNKS)
        _distance(self.net, torch.device("cpu"))  # reports missing files before the attack starts

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:  # noqa: ARG002
        distance = _distance(self.net, images.device)
        return self.weight * distance(pictures.float(), images.float(), normalize=True).flatten().to(images.dtype)


@dataclass(frozen=True)
class Penalties:
    """The sum of several penalties.

    Examples:
        >>> from attacks.objectives import Penalties, TotalVariation
        >>> pictures, parts = torch.eye(4)[None, None], (TotalVariation(1.0), TotalVariation(3.0))
        >>> prices = [price(pictures, pictures, 0 * pictures) for price in (Penalties(parts), *parts)]
        >>> torch.allclose(prices[0], prices[1] + prices[2])
        True
    """

    parts: tuple[Penalty, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("`parts` must hold at least one penalty; for none, leave the penalty out")

    def __call__(self, delta: Tensor, pictures: Tensor, images: Tensor) -> Tensor:
        return torch.stack([penalty(delta, pictures, images) for penalty in self.parts]).sum(0)


def total_variation(pattern: Tensor, *, isotropic: bool = True) -> Tensor:
    """(N,C,H,W) -> (N,), as in `TotalVariation`, of weight 1."""
    across = nn.functional.pad(pattern.diff(dim=3), (0, 1))
    down = nn.functional.pad(pattern.diff(dim=2), (0, 0, 0, 1))
    if isotropic:
        lengths = (across.square() + down.square() + EDGE**2).sqrt() - EDGE
    else:
        lengths = (across.square() + EDGE**2).sqrt() + (down.square() + EDGE**2).sqrt() - 2 * EDGE
    return lengths.flatten(1).mean(1)


class Price(NamedTuple):
    """The penalty of each image (N,), and its gradient, like delta: that of the mean, of a delta for all images."""

    value: Tensor
    grad: Tensor


def price_of(penalty: Penalty, problem: Problem, delta: Tensor) -> Price:
    """The price of a delta. Raises ValueError if it has no gradient."""
    images = problem.images
    with torch.enable_grad():
        leaf = delta.detach().requires_grad_()
        penalties = penalty(leaf, seen(problem.perturbation.scene(images, leaf)), images)
        total = penalties.mean() if len(delta) < len(images) else penalties.sum()
        (grad,) = torch.autograd.grad(total, leaf, allow_unused=True) if total.requires_grad else (None,)
    if grad is None:
        raise ValueError(
            "the penalty has no gradient in the perturbation: it cuts the graph (.numpy(), no_grad), or is constant"
        )
    return Price(penalties.detach(), grad)


def add_price(estimate: Estimate, price: Price) -> Estimate:
    value = uploaded(estimate.value, price.grad.device) + price.value
    return estimate._replace(value=value, grad=estimate.grad + price.grad)


@lru_cache(maxsize=4)
def _distance(net: str, device: torch.device) -> Callable[..., Tensor]:
    package = extra("lpips")
    from torchvision.models import get_model_weights

    url = get_model_weights(TRUNKS[net])["IMAGENET1K_V1"].url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
    if not file.is_file():
        raise FileNotFoundError(f"LPIPS needs {file}, and nothing is downloaded here: fetch it from {url} yourself")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lpips calls torchvision with deprecated arguments
        distance: nn.Module = package.LPIPS(net=net, verbose=False).eval().requires_grad_(False).to(device)
    return distance


def check_weight(weight: float) -> None:
    if not (weight > 0 and math.isfinite(weight)):
        raise ValueError(f"`weight` must be a positive number; got {weight} (to have no penalty, leave it out)")
