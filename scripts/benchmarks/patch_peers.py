"""Ours and ART's `AdversarialPatchPyTorch`, gradient for gradient: each makes one texture for a group of scenes."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import EOT, Away, InfoNCE, Wiener, attack
from attacks.solvers.loop import Step
from transforms.auditing.steps import seeded

from .contest import OURS, Contestant, Setting
from .patch_case import TEXTURE, Question
from .peers import LogProbabilities, art_patch

TEMPERATURE = InfoNCE.temperature


def started(question: Question, setting: Setting, steps: int, texture: int = TEXTURE) -> Iterator[Step]:
    """Our loop, the loss that of the preset `patch_quickstart`; or away from the scene's own embedding."""
    away = question.target is None
    return attack(
        question.image,
        question.anchor if away else question.goal,
        encoder=question.counted,
        objective=Away() if away else InfoNCE(question.gallery, TEMPERATURE, targeted=True),
        perturbation=question.ranges.patch(question.image.shape[-1], texture),
        optimiser=Wiener(rel_step_size=setting.step),
        eot=EOT(question.ranges.pipeline, views=setting.views),
        steps=steps,
        seed=question.seed,
    )


def ours(question: Question, setting: Setting) -> Mapping[int, Tensor]:
    """The last iterate."""
    *_, last = started(question, setting, question.evals // setting.views)
    return {question.evals: last.delta}


class ToGallery(nn.Module):
    """A class for each picture of the gallery, the logits its cosines over `TEMPERATURE`."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.encoder, self.gallery = question.counted, question.gallery

    def forward(self, views: Tensor) -> Tensor:
        return F.normalize(self.encoder(views), dim=1) @ self.gallery.T / TEMPERATURE


def moving_patch(
    question: Question, setting: Setting, steps: int, optimiser: str, texture: int = TEXTURE
) -> tuple[Any, Tensor, Tensor]:
    """ART's attack, the pictures of a step (each scene as often as it has views), and their labels."""
    model: nn.Module
    model, labels, classes = LogProbabilities(question.counted, question.anchor), torch.zeros_like(question.goal), 2
    if setting.loss == "gallery":
        model, labels, classes = ToGallery(question), question.goal, len(question.gallery)
    pictures = question.image.repeat_interleave(setting.views, 0)
    patch_attack = art_patch(
        model,
        pictures,
        classes,
        **question.ranges.arguments(),
        learning_rate=setting.step,
        max_iter=steps,
        patch_shape=(3, texture, texture),
        optimizer=optimiser,
        targeted=question.target is not None,
    )
    return patch_attack, pictures, F.one_hot(labels.repeat_interleave(setting.views), classes).float()


def art(optimiser: str) -> Callable[[Question, Setting], Mapping[int, Tensor]]:
    """ART's texture with one of its two optimisers."""

    def run(question: Question, setting: Setting) -> Mapping[int, Tensor]:
        patch_attack, pictures, labels = moving_patch(question, setting, question.evals // setting.views, optimiser)
        with seeded(question.seed):
            texture, _ = patch_attack.generate(pictures.numpy(), labels.numpy(), shuffle=False)
        return {question.evals: torch.as_tensor(texture, dtype=torch.float32)[None]}

    return run


#: Learning rates, views and losses.
GRID = tuple(
    Setting(step, views, loss=loss)
    for step, views, loss in itertools.product((0.01, 0.02, 0.05, 0.1, 0.2), (1, 4), ("cosine", "gallery"))
)
#: Ours: the defaults, and two views of each scene a step, chosen on the first group. ART's default learning rate, 5,
#: is that of its signature.
CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant("attacks", ours, lambda *_: Setting(Wiener().rel_step_size, 2, loss="as its preset")),
    "ART, Adam": Contestant("art", art("Adam"), lambda *_: Setting(5.0, 1, loss="cosine"), GRID),
    "ART, pgd": Contestant("art", art("pgd"), lambda *_: Setting(5.0, 1, loss="cosine"), GRID),
}
