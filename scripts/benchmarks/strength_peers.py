"""The attacks that are compared: ours, and those of three libraries with the same views and as many gradients.

The libraries get labels whose cross-entropy has the gradient of the cosine (see `peers`), and views drawn at random
in front of the encoder, as their documentation says. Each holds as many views at once as its library lets it:
torchattacks and Foolbox one of each picture, ART all of a step.

Patches are compared likewise: one texture for a group of pictures, in the middle third of each. ART's
`AdversarialPatchPyTorch` moves its patch about by itself; here it lies still (`patch_location`, no rotation) as ours
does, and the views move. What is scored is the picture with the 8-bit texture pasted in, texel on pixel.
"""

import importlib
import itertools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from attacks import EOT, Away, Linf, Patch, Wiener, attack
from attacks.eot.protocols import Optimiser, Perturbation
from attacks.optimisers.apgd import APGD
from transforms import Uniform
from transforms.auditing.steps import seeded

from .contest import OURS, Contestant, Setting
from .peers import Gradient, LogProbabilities, art_eot, art_patch, eotpgd, linf_pgd
from .strength_case import PIPELINE, SIZE, Group, Trace

Run = Callable[[Group, Setting], Mapping[int, Tensor]]
#: Where a patch's texture lies: from a third of the picture to two thirds.
SIDE = SIZE // 3
LOW, HIGH = SIDE / SIZE, 2 * SIDE / SIZE
QUAD = ((LOW, LOW), (HIGH, LOW), (HIGH, HIGH), (LOW, HIGH))


class NewView(nn.Module):
    """Shows pictures (B,3,S,S), or as many rows of each, from views drawn anew at each call, and records the
    pictures. Every picture of a call is shown from the same views."""

    def __init__(self, question: Group, trace: Trace) -> None:
        super().__init__()
        self.seed, self.count, self.trace = question.seed, len(question.image), trace
        self.drawn = self.done = 0

    def forward(self, images: Tensor) -> Tensor:
        if images.requires_grad:  # else the call is not part of a gradient
            views = len(images) // self.count
            self.trace.record(images[::views], self.done, views)
            self.done += views
        return self.draw(images)

    def draw(self, images: Tensor) -> Tensor:
        """The same, without recording."""
        views = max(1, len(images) // self.count)
        u = Uniform()(views, PIPELINE.dims, seed=self.seed, step=self.drawn).to(images)
        self.drawn += views
        return PIPELINE(images, u.repeat(len(images) // views, 1))


def library(make: Callable[..., Gradient]) -> Run:
    """The attack of a library that differentiates a model with the views inside."""

    def run(question: Group, setting: Setting) -> Mapping[int, Tensor]:
        trace = Trace(question.marks)
        with seeded(question.seed):
            return trace.end(make(question, NewView(question, trace), setting, steps(question, setting))())

    return run


def art_pgd(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """ART's `ProjectedGradientDescentPyTorch`."""
    trace = Trace(question.marks)
    show = NewView(question, trace)
    classifier = art_eot(
        question, show.draw, setting.views, lambda x: trace.record(x, show.drawn // len(x), setting.views)
    )
    evasion = importlib.import_module(
        "art.attacks.evasion.projected_gradient_descent.projected_gradient_descent_pytorch"
    )
    eps, step, most = question.eps, setting.step * question.eps, steps(question, setting)
    pgd = evasion.ProjectedGradientDescentPyTorch(
        classifier, eps=eps, eps_step=step, max_iter=most, decay=setting.momentum, verbose=False
    )
    labels = torch.tensor([[1.0, 0.0]]).expand(len(question.image), -1)
    # `generate` is this, batch by batch, and then a check of success that EoT with several pictures breaks.
    return trace.end(torch.as_tensor(pgd._generate_batch(question.image, labels, None, eps, step)))


def pasted(images: Tensor, texture: Tensor) -> Tensor:
    """(B,3,S,S), (1,3,s,s) -> the pictures with the texture, rounded to 8 bits, over their middle."""
    pictures = images.clone()
    pictures[..., SIDE : 2 * SIDE, SIDE : 2 * SIDE] = (texture.clamp(0, 1) * 255).round() / 255
    return pictures


def still_patch(optimiser: str) -> Run:
    """ART's patch with one of its two optimisers. It shows each picture once a step; for several `views` each
    picture is repeated. `step` is its learning rate, in the picture's [0,1]."""

    def run(question: Group, setting: Setting) -> Mapping[int, Tensor]:
        trace = Trace(question.marks)
        repeated = question.image.repeat_interleave(setting.views, 0)
        patch_attack = art_patch(
            nn.Sequential(NewView(question, trace), LogProbabilities(question.ordinary, question.anchor)),
            repeated,
            rotation_max=0.0,
            learning_rate=setting.step,
            max_iter=steps(question, setting),
            patch_shape=(3, SIDE, SIDE),
            patch_location=(SIDE, SIDE),
            optimizer=optimiser,
            targeted=False,
        )
        labels = torch.tensor([[1.0, 0.0]]).expand(len(repeated), -1).numpy()
        with seeded(question.seed):
            texture, _ = patch_attack.generate(repeated.numpy(), labels, shuffle=False)
        return trace.end(pasted(question.image, torch.as_tensor(texture).to(repeated)[None]))

    return run


def steps(question: Group, setting: Setting) -> int:
    """How many the budget allows."""
    return max(1, question.evals // setting.views)


def last_delta(question: Group, setting: Setting, perturbation: Perturbation, optimiser: Optimiser) -> Tensor:
    """The last delta of this project's loop."""
    *_, last = attack(
        question.image,
        question.anchor,
        encoder=question.counted,
        objective=Away(),
        perturbation=perturbation,
        optimiser=optimiser,
        eot=EOT(PIPELINE, views=setting.views),
        steps=steps(question, setting),
        seed=question.seed,
    )
    return last.delta


def ours(optimiser: type[Wiener] | type[APGD]) -> Run:
    """This project's loop with an optimiser; its end alone, because a schedule depends on the number of steps. APGD
    halves its step by itself."""

    def run(question: Group, setting: Setting) -> Mapping[int, Tensor]:
        delta = last_delta(question, setting, Linf(question.eps), optimiser(rel_step_size=setting.step))
        return {question.evals: question.image + delta}

    return run


def our_patch(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """This project's loop, the patch a layer of the scene."""
    delta = last_delta(question, setting, Patch((SIDE, SIDE), QUAD), Wiener(rel_step_size=setting.step))
    return {question.evals: pasted(question.image, delta)}


def near(share: float) -> int:
    """The power of two next to a number, at least 1."""
    return 1 << max(0, round(share).bit_length() - 1)


def grid(momentum: float | None, *lengths: float) -> tuple[Setting, ...]:
    """Lengths of a step, each with some numbers of views."""
    return tuple(Setting(length, views, momentum) for length in lengths for views in (1, 2, 4, 8, 16))


def rule(evals: int) -> Setting:
    """Ours, for any encoder, eps and budget: the defaults of `Wiener`, four views a step. Fixed beforehand, on other
    pictures and views than those in question."""
    return Setting(Wiener().rel_step_size, min(4, evals & -evals))


PLAIN = grid(None, 0.025, 0.05, 0.1, 0.2, 0.4)
#: Name -> attack. The defaults of the libraries are those of their signatures. Of ART, which leaves the number of
#: views to its user, the default number of steps, 100, is kept as nearly as the evaluations allow.
CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant("attacks", ours(Wiener), lambda _, evals: rule(evals)),
    "ours, APGD": Contestant(
        "attacks", ours(APGD), lambda _, evals: Setting(APGD().rel_step_size, rule(evals).views)
    ),
    "torchattacks": Contestant("torchattacks", library(eotpgd), lambda eps, _: Setting(2 / 255 / eps, 2), PLAIN),
    "ART": Contestant(
        "art", art_pgd, lambda eps, evals: Setting(0.1 / eps, near(evals / 100)), PLAIN + grid(1.0, 0.4, 0.8, 1.6)
    ),
    "Foolbox": Contestant("foolbox", library(linf_pgd), lambda *_: Setting(0.01 / 0.3, 16), PLAIN),
}
#: ART's default learning rate for patches, 5, is that of its signature; so is Adam.
RATES = tuple(itertools.starmap(Setting, itertools.product((0.02, 0.05, 0.1, 0.2), (1, 4))))
PATCHES: dict[str, Contestant] = {
    OURS: Contestant("attacks", our_patch, lambda _, evals: rule(evals)),
    "ART, Adam": Contestant("art", still_patch("Adam"), lambda *_: Setting(5.0, 1), RATES),
    "ART, pgd": Contestant("art", still_patch("pgd"), lambda *_: Setting(5.0, 1), RATES),
}
