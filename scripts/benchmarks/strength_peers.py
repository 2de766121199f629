"""The attacks that are compared: ours, and those of three libraries with the same views and as many gradients.

The libraries get labels whose cross-entropy has the gradient of the cosine (see `peers`), and views drawn at random
in front of the encoder, as their documentation says. The check of success that follows is left out. Each
holds as many views at once as its library lets it: torchattacks and Foolbox one of each picture, ART all of a step.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attacks import EOT, Away, Linf, Wiener, attack
from attacks.eot.protocols import Optimiser, Perturbation
from attacks.optimisers.apgd import APGD
from transforms import Uniform

from .contest import OURS, Contestant, Setting
from .peers import Linear, LogProbabilities, art_classifier
from .strength_case import PIPELINE, Group, Trace, seeded


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


def eotpgd(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """torchattacks' `EOTPGD`."""
    trace = Trace(question.marks)
    model = nn.Sequential(NewView(question, trace), LogProbabilities(question)).eval()
    pgd = importlib.import_module("torchattacks").EOTPGD(
        model,
        eps=question.eps,
        alpha=setting.step * question.eps,
        steps=steps(question, setting),
        eot_iter=setting.views,
    )
    labels = torch.zeros(len(question.image), dtype=torch.long, device=question.device)
    with seeded(question.seed):
        return trace.end(pgd(question.image, labels))


def linf_pgd(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """Foolbox's `LinfPGD` through its `ExpectationOverTransformationWrapper`."""
    trace, library = Trace(question.marks), importlib.import_module("foolbox")
    model = nn.Sequential(NewView(question, trace), Linear(question)).eval()
    inner = library.PyTorchModel(model, (0, 1), device=question.device)
    wrapped = library.models.ExpectationOverTransformationWrapper(inner, n_steps=setting.views)
    pgd = library.attacks.LinfPGD(rel_stepsize=setting.step, steps=steps(question, setting))
    labels = torch.zeros(len(question.image), dtype=torch.long, device=question.device)
    with seeded(question.seed):
        return trace.end(pgd.run(wrapped, question.image, library.Misclassification(labels), epsilon=question.eps))


def art_pgd(question: Group, setting: Setting) -> Mapping[int, Tensor]:
    """ART's `ProjectedGradientDescentPyTorch` with an EoT preprocessor of its own kind."""
    trace, show = Trace(question.marks), NewView(question, Trace(question.marks))
    base: Any = importlib.import_module("art.preprocessing.expectation_over_transformation.pytorch").EoTPyTorch

    class Views(base):  # type: ignore[misc]
        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            trace.record(x, show.drawn // len(x), setting.views)
            return super().forward(x, y)

        def _transform(self, x: Tensor, y: Tensor | None, **_: Any) -> tuple[Tensor, Tensor | None]:
            return show.draw(x), y

    views = Views(nb_samples=setting.views, clip_values=(0.0, 1.0))
    classifier = art_classifier(LogProbabilities(question), question.image, preprocessing_defences=[views])
    evasion = importlib.import_module(
        "art.attacks.evasion.projected_gradient_descent.projected_gradient_descent_pytorch"
    )
    eps, step = question.eps, setting.step * question.eps
    pgd = evasion.ProjectedGradientDescentPyTorch(
        classifier, eps=eps, eps_step=step, max_iter=steps(question, setting), decay=setting.momentum, verbose=False
    )
    labels = torch.tensor([[1.0, 0.0]], device=question.device).expand(len(question.image), -1)
    # `generate` is this, batch by batch, and then a check of success that EoT with several pictures breaks.
    pictures = pgd._generate_batch(question.image, labels, None, eps, step)
    return trace.end(torch.as_tensor(pictures, device=question.device))


def steps(question: Group, setting: Setting) -> int:
    """How many the budget allows."""
    return max(1, question.evals // setting.views)


def attacked(question: Group, setting: Setting, perturbation: Perturbation, optimiser: Optimiser) -> Tensor:
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


def ours(optimiser: Callable[[Setting], Optimiser]) -> Callable[[Group, Setting], Mapping[int, Tensor]]:
    """This project's loop with an optimiser; its end alone, because a schedule depends on the number of steps."""

    def run(question: Group, setting: Setting) -> Mapping[int, Tensor]:
        delta = attacked(question, setting, Linf(question.eps), optimiser(setting))
        return {question.evals: question.image + delta}

    return run


def wiener(setting: Setting) -> Wiener:
    """Ours, with the default schedule."""
    return Wiener(rel_step_size=setting.step)


def apgd(setting: Setting) -> APGD:
    """Its step is the first; it halves it by itself."""
    return APGD(rel_step_size=setting.step)


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
    OURS: Contestant("attacks", ours(wiener), lambda _, evals: rule(evals)),
    "ours, APGD": Contestant(
        "attacks", ours(apgd), lambda _, evals: Setting(APGD().rel_step_size, rule(evals).views)
    ),
    "torchattacks": Contestant("torchattacks", eotpgd, lambda eps, _: Setting(2 / 255 / eps, 2), PLAIN),
    "ART": Contestant(
        "art", art_pgd, lambda eps, evals: Setting(0.1 / eps, near(evals / 100)), PLAIN + grid(1.0, 0.4, 0.8, 1.6)
    ),
    "Foolbox": Contestant("foolbox", linf_pgd, lambda *_: Setting(0.01 / 0.3, 16), PLAIN),
}
