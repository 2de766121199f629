"""Ours and ART's `AdversarialPatchPyTorch`, gradient for gradient: each makes one texture for a group of scenes."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import EOT, Away, InfoNCE, Wiener, attack
from attacks.solvers.loop import Step

from .patch_case import TEXTURE, Question
from .strength_case import seeded


@dataclass(frozen=True)
class Setting:
    """The `step` (ours: as a share of half the range; ART's learning rate), how many `views` a step has of each
    scene, and the loss: the `cosine`, or the cross-entropy of the cosines to the whole `gallery`."""

    step: float
    views: int
    loss: str = "cosine"

    def __str__(self) -> str:
        return f"step {self.step:g}, {self.views} views of each scene, {self.loss}"


@dataclass(frozen=True)
class Contestant:
    """An attack, (question, setting) -> texture (1,3,h,w); what its signature says; the settings to choose from."""

    module: str
    run: Callable[[Question, Setting], Tensor]
    default: Setting
    grid: tuple[Setting, ...] = ()


def started(question: Question, setting: Setting, steps: int, texture: int = TEXTURE) -> Iterator[Step]:
    """Our loop, the loss that of the preset `patch_quickstart`; or away from the scene's own embedding."""
    size, away = question.scenes.shape[-1], question.target is None
    return attack(
        question.scenes,
        question.anchor if away else question.goal,
        encoder=question.counted,
        objective=Away() if away else InfoNCE(question.gallery, TEMPERATURE, targeted=True),
        perturbation=question.ranges.patch(size, texture),
        optimiser=Wiener(rel_step_size=setting.step),
        eot=EOT(question.ranges.pipeline, n=setting.views),
        steps=steps,
        seed=question.seed,
    )


def ours(question: Question, setting: Setting) -> Tensor:
    """The last iterate."""
    *_, last = started(question, setting, question.evals // setting.views)
    return last.delta


class ToAnchor(nn.Module):
    """Two classes: the cross-entropy of the first is 2 - cosine to the scene's anchor. Rows are scenes, each as often
    as a step has views; of fewer rows, those of the first."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.encoder, self.anchor = question.counted, question.anchor

    def forward(self, views: Tensor) -> Tensor:
        anchors = self.anchor.repeat_interleave(max(1, len(views) // len(self.anchor)), 0)[: len(views)]
        entropy = 2 - F.cosine_similarity(self.encoder(views), anchors)
        return torch.stack([-entropy, (-torch.expm1(-entropy)).log()], dim=1)


class ToGallery(nn.Module):
    """A class for each picture of the gallery, the logits its cosines over `TEMPERATURE`."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.encoder, self.gallery = question.counted, question.gallery

    def forward(self, views: Tensor) -> Tensor:
        return F.normalize(self.encoder(views), dim=1) @ self.gallery.T / TEMPERATURE


TEMPERATURE = InfoNCE.temperature


def art_patch(
    question: Question, setting: Setting, steps: int, optimiser: str, texture: int = TEXTURE
) -> tuple[Any, Tensor, Tensor]:
    """ART's attack, the pictures of a step (each scene as often as it has views), and their labels."""
    labels = question.goal if setting.loss == "gallery" else torch.zeros_like(question.goal)
    classes = len(question.gallery) if setting.loss == "gallery" else 2
    model = ToGallery(question) if setting.loss == "gallery" else ToAnchor(question)
    pictures = question.scenes.repeat_interleave(setting.views, 0)
    estimators = importlib.import_module("art.estimators.classification")
    evasion = importlib.import_module("art.attacks.evasion.adversarial_patch.adversarial_patch_pytorch")
    classifier = estimators.PyTorchClassifier(
        model.eval(),
        nn.CrossEntropyLoss(),
        input_shape=tuple(pictures.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="cpu" if pictures.device.type == "cpu" else "gpu",
    )
    made = evasion.AdversarialPatchPyTorch(
        classifier,
        **question.ranges.arguments(),
        learning_rate=setting.step,
        max_iter=steps,
        batch_size=len(pictures),
        patch_shape=(3, texture, texture),
        patch_type="square",
        optimizer=optimiser,
        targeted=question.target is not None,
        verbose=False,
    )
    return made, pictures, F.one_hot(labels.repeat_interleave(setting.views), classes).float()


def art(optimiser: str) -> Callable[[Question, Setting], Tensor]:
    """ART's texture with one of its two optimisers."""

    def run(question: Question, setting: Setting) -> Tensor:
        made, pictures, labels = art_patch(question, setting, question.evals // setting.views, optimiser)
        with seeded(question.seed):
            texture, _ = made.generate(pictures.cpu().numpy(), labels.cpu().numpy(), shuffle=False)
        return torch.as_tensor(texture, dtype=torch.float32)[None].to(pictures)

    return run


def grid() -> tuple[Setting, ...]:
    """Learning rates, views and losses."""
    each = itertools.product((0.01, 0.02, 0.05, 0.1, 0.2), (1, 4), ("cosine", "gallery"))
    return tuple(itertools.starmap(Setting, each))


OURS = "ours"
#: Ours: the defaults, and two views of each scene a step, chosen on the first group. ART's default learning rate, 5,
#: is that of its signature.
CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant("attacks", ours, Setting(Wiener().rel_step_size, 2, "as its preset")),
    "ART, Adam": Contestant("art", art("Adam"), Setting(5.0, 1), grid()),
    "ART, pgd": Contestant("art", art("pgd"), Setting(5.0, 1), grid()),
}
