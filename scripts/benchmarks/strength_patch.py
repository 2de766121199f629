"""The same comparison for patches: one texture for a group of pictures, in the middle third of each.

ART's `AdversarialPatchPyTorch` moves its patch about by itself; here it lies still (`patch_location`, no rotation) as
ours does, and the views move, which stand before the encoder as for every library. What is scored is the picture with
the 8-bit texture pasted in, texel on pixel.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attacks.perturbations.patch.patch import Patch

from .contest import OURS, Contestant, Setting
from .peers import LogProbabilities, art_classifier
from .strength_case import SIZE, Group, Trace, seeded
from .strength_peers import NewView, attacked, rule, steps, wiener

#: Where the texture lies: from a third of the picture to two thirds.
SIDE = SIZE // 3
LOW, HIGH = SIDE / SIZE, 2 * SIDE / SIZE
QUAD = ((LOW, LOW), (HIGH, LOW), (HIGH, HIGH), (LOW, HIGH))


def pasted(images: Tensor, texture: Tensor) -> Tensor:
    """(B,3,S,S), (1,3,s,s) -> the pictures with the texture, rounded to 8 bits, over their middle."""
    pictures = images.clone()
    pictures[..., SIDE : 2 * SIDE, SIDE : 2 * SIDE] = (texture.clamp(0, 1) * 255).round() / 255
    return pictures


def ours(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """This project's loop, the patch a layer of the scene."""
    delta = attacked(question, setting, Patch((SIDE, SIDE), QUAD), wiener(setting))
    return {question.evals: pasted(question.image, delta)}


def art(optimiser: str) -> Callable[[Group, Setting], Mapping[int, Tensor]]:
    """ART's patch with one of its two optimisers. It shows each picture once a step; for several `views` each
    picture is repeated. `step` is its learning rate, in the picture's [0,1]."""

    def run(question: Group, setting: Setting) -> Mapping[int, Tensor]:
        trace, images = Trace(question.marks), question.image
        evasion = importlib.import_module("art.attacks.evasion.adversarial_patch.adversarial_patch_pytorch")
        model = nn.Sequential(NewView(question, trace), LogProbabilities(question))
        classifier = art_classifier(model, images)
        repeated = images.repeat_interleave(setting.views, 0).cpu().numpy()
        patch_attack = evasion.AdversarialPatchPyTorch(
            classifier,
            rotation_max=0.0,
            learning_rate=setting.step,
            max_iter=steps(question, setting),
            batch_size=len(repeated),
            patch_shape=(images.shape[1], SIDE, SIDE),
            patch_location=(SIDE, SIDE),
            patch_type="square",
            optimizer=optimiser,
            targeted=False,
            verbose=False,
        )
        labels = torch.tensor([[1.0, 0.0]]).expand(len(repeated), -1).numpy()
        with seeded(question.seed):
            texture, _ = patch_attack.generate(repeated, labels, shuffle=False)
        return trace.end(pasted(images, torch.as_tensor(texture).to(images)[None]))

    return run


def grid() -> tuple[Setting, ...]:
    """Learning rates and numbers of views."""
    return tuple(itertools.starmap(Setting, itertools.product((0.02, 0.05, 0.1, 0.2), (1, 4))))


#: Name -> attack. ART's default learning rate, 5, is that of its signature; so is Adam.
PATCHES: dict[str, Contestant] = {
    OURS: Contestant("attacks", ours, lambda _, evals: rule(evals)),
    "ART, Adam": Contestant("art", art("Adam"), lambda *_: Setting(5.0, 1), grid()),
    "ART, pgd": Contestant("art", art("pgd"), lambda *_: Setting(5.0, 1), grid()),
}
