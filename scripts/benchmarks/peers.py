"""The same gradient by other means: a loop written by hand with kornia, and three attack libraries.

Each is used as its documentation says, and gets what its user would have: an encoder with weights as they come. The
libraries transform one view at a time, with the same code as ours. Those that need labels get logits whose
cross-entropy has the gradient of the cosine. Checks of success after an attack, another forward pass of all views,
are left out. The libraries are optional: this is the only module that imports them.
"""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import kornia.enhance
import kornia.geometry.transform as warps
import torch
from torch import Tensor, nn

from .case import PIPELINE, GradientCase
from .contest import Attack, Contestant, Setting


def kornia_views(image: Tensor, u: Tensor) -> Tensor:
    """The views of one picture, or one of each, by kornia: two warps (affine, perspective), brightness, contrast."""
    views, size = image.expand(len(u), -1, -1, -1), image.shape[-1]
    values = PIPELINE.values(u)
    angle, zoom, move = values[:, 0], values[:, 1:2], values[:, 3:5] * size
    corner, brightness, factor = values[:, 5:13], values[:, 13], values[:, 14]
    frame: dict[str, Any] = {"padding_mode": "fill", "fill_value": torch.full((3,), 0.5, device=image.device)}
    centre = torch.full_like(move, (size - 1) / 2)
    matrix = warps.get_rotation_matrix2d(centre, -angle, zoom.expand(-1, 2))
    matrix = torch.cat([matrix[..., :2], matrix[..., 2:] + move[..., None]], -1)
    views = warps.warp_affine(views, matrix, (size, size), **frame)
    square = torch.tensor([[0.0, 0.0], [1, 0], [1, 1], [0, 1]], device=image.device).expand(len(u), -1, -1)
    ends = square + corner.unflatten(-1, (4, 2)) / 2
    matrix = warps.get_perspective_transform(square * size - 0.5, ends * size - 0.5)
    views = warps.warp_perspective(views, matrix, (size, size), align_corners=True, **frame)
    views = kornia.enhance.adjust_brightness(views, brightness)
    return (0.5 + (views - 0.5) * factor[:, None, None, None]).clamp(0, 1)


def kornia_loop(case: GradientCase, _: Setting) -> Attack:
    """What one writes by hand: a batch of views by kornia, one graph, `loss.backward()`."""

    def run() -> Tensor:
        case.ordinary.zero_grad()
        leaf = case.image.clone().requires_grad_()
        case.loss(case.ordinary, kornia_views(leaf, case.u)).mean().backward()
        assert leaf.grad is not None
        return leaf.grad

    return run


class NextView(nn.Module):
    """Shows its input (1,3,S,S) from the next of the case's views, in turn, where a user would draw one at random."""

    def __init__(self, case: GradientCase) -> None:
        super().__init__()
        self.u, self.calls = case.u, itertools.count()

    def forward(self, image: Tensor) -> Tensor:
        row = next(self.calls) % len(self.u)
        return PIPELINE(image, self.u[row : row + 1])


class LogProbabilities(nn.Module):
    """Two classes for views (B*V,3,S,S): the cross-entropy of the first is exactly the case's `entropy`, 2 - cosine,
    so raising it lowers the cosine."""

    def __init__(self, case: GradientCase) -> None:
        super().__init__()
        self.case = case

    def forward(self, views: Tensor) -> Tensor:
        entropy = self.case.entropy(self.case.ordinary(views))
        return torch.stack([-entropy, (-torch.expm1(-entropy)).log()], dim=1)


class MeanLogit(LogProbabilities):
    """Two classes, for a library that averages the *logits* of the views: with (2 - entropy, 0) that is the mean
    cosine, of which the cross-entropy of the first class is a falling function."""

    def forward(self, views: Tensor) -> Tensor:
        cosine = 2 - self.case.entropy(self.case.ordinary(views))
        return torch.stack([cosine, torch.zeros_like(cosine)], dim=1)


def first_class(case: GradientCase) -> Tensor:
    """The label of each picture."""
    return torch.zeros(len(case.image), dtype=torch.long, device=case.image.device)


def eotpgd(case: GradientCase, show: nn.Module, setting: Setting, steps: int, random_start: bool = True) -> Attack:
    """torchattacks' `EOTPGD`, the views drawn by `show` inside the model. Returns what runs it."""
    pgd = importlib.import_module("torchattacks").EOTPGD(
        nn.Sequential(show, LogProbabilities(case)).eval(),
        eps=case.eps,
        alpha=setting.step * case.eps,
        steps=steps,
        eot_iter=setting.views,
        random_start=random_start,
    )
    labels = first_class(case)
    return lambda: pgd(case.image, labels)


def foolbox_pgd(
    case: GradientCase,
    show: nn.Module,
    setting: Setting,
    steps: int,
    random_start: bool = True,
    name: str = "LinfPGD",
) -> Attack:
    """Foolbox's `LinfPGD` or `L2PGD` through its `ExpectationOverTransformationWrapper`, likewise."""
    library = importlib.import_module("foolbox")
    network = nn.Sequential(show, MeanLogit(case)).eval()
    inner = library.PyTorchModel(network, (0, 1), device=case.image.device)
    model = library.models.ExpectationOverTransformationWrapper(inner, n_steps=setting.views)
    pgd = getattr(library.attacks, name)(rel_stepsize=setting.step, steps=steps, random_start=random_start)
    goal = library.Misclassification(first_class(case))
    return lambda: pgd.run(model, case.image, goal, epsilon=case.eps)


def adversarial_library(module: str) -> Any:
    """A module of adversarial-library. All of its attacks import visdom, which draws curves in a browser and whose
    package no longer builds; an empty module stands in where it is missing."""
    if "visdom" not in sys.modules and importlib.util.find_spec("visdom") is None:
        sys.modules["visdom"] = ModuleType("visdom")
    return importlib.import_module(f"adv_lib.{module}")


def art_eot(case: GradientCase, show: Callable[[Tensor], Tensor], views: int) -> Any:
    """ART's classifier behind an EoT preprocessor of its own kind, whose views are those of `show`."""
    base: Any = importlib.import_module("art.preprocessing.expectation_over_transformation.pytorch").EoTPyTorch

    class EotViews(base):  # type: ignore[misc]
        def _transform(self, x: Tensor, y: Tensor | None, **_: Any) -> tuple[Tensor, Tensor | None]:
            return show(x), y

    return importlib.import_module("art.estimators.classification").PyTorchClassifier(
        LogProbabilities(case).eval(),
        nn.CrossEntropyLoss(),
        input_shape=tuple(case.image.shape[1:]),
        nb_classes=2,
        clip_values=(0.0, 1.0),
        device_type="cpu" if case.image.device.type == "cpu" else "gpu",
        preprocessing_defences=[EotViews(nb_samples=views, clip_values=(0.0, 1.0))],
    )


def art_step(case: GradientCase, setting: Setting) -> Attack:
    classifier = art_eot(case, NextView(case), setting.views)
    label = torch.tensor([[1.0, 0.0]], device=case.image.device)
    return lambda: -classifier.loss_gradient(case.image, label)


def single_step(attack: Callable[..., Attack]) -> Callable[[GradientCase, Setting], Attack]:
    """The move of an attack in one step, without a random start."""

    def prepare(case: GradientCase, setting: Setting) -> Attack:
        run = attack(case, NextView(case), setting, 1, random_start=False)
        return lambda: case.image - run()

    return prepare


#: What is timed beside our engine: the gradient of the mean cosine (1,3,S,S), or that times a positive number, or its
#: sign times one.
PEERS = {
    "kornia, one graph": Contestant("kornia", kornia_loop),
    "ART": Contestant("art", art_step),
    "torchattacks": Contestant("torchattacks", single_step(eotpgd)),
    "Foolbox": Contestant("foolbox", single_step(foolbox_pgd)),
}
