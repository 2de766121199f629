"""The attacks that are compared: ours as shipped, the literature's written by hand, and those of five libraries.

All have the same views, as many gradients, and the same ball. The libraries get labels whose cross-entropy has the
gradient of the cosine (see `peers`), and views drawn at random in front of the encoder, as their documentation says.
Each holds as many views at once as its library lets it: one of each picture where it loops over views, else all of a
step.
"""

import importlib
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms.functional import InterpolationMode, rotate

from attacks import EOT, L2, Away, Wiener, solve
from attacks.eot import Adaptive
from attacks.objectives import Margin
from transforms.auditing.steps import seeded
from transforms.draws import stream

from .contest import OURS, Attack, Contestant, Setting
from .peers import LogProbabilities, adversarial_library, art_eot, eotpgd, first_class, foolbox_pgd
from .strength_case import StrengthTask

VIEWS = (1, 2, 4, 8)


class NewView(nn.Module):
    """Shows each of its pictures (N,3,S,S) from a view of its own, drawn anew at each call."""

    def __init__(self, task: StrengthTask) -> None:
        super().__init__()
        self.views, self.generator = task.views, torch.Generator().manual_seed(stream(task.seed, "views"))

    def forward(self, images: Tensor) -> Tensor:
        return self.views(images, torch.rand(len(images), self.views.dims, generator=self.generator))


class MeanOfViews(nn.Module):
    """Two classes for pictures (B,3,S,S) from several new views: the mean cosine, and a number above any. So the
    cross-entropy of the first falls as the mean rises, and an attack on it counts as successful from the start."""

    def __init__(self, task: StrengthTask, views: int) -> None:
        super().__init__()
        self.task, self.count, self.show = task, views, NewView(task)

    def forward(self, images: Tensor) -> Tensor:
        mean = losses_of_views(self.task, self.show, images, self.count).mean(0)
        return torch.stack([mean, torch.full_like(mean, 2)], 1)


def losses_of_views(task: StrengthTask, show: Callable[[Tensor], Tensor], images: Tensor, views: int) -> Tensor:
    """(B,3,S,S) -> (V,B), the cosines, or 2 and the logarithm of the label's probability."""
    embeddings: Tensor = task.ordinary(show(images.repeat(views, 1, 1, 1)))
    by_picture = embeddings.unflatten(0, (views, -1)).transpose(0, 1).flatten(0, 1)
    losses: Tensor = 2 - task.entropy(by_picture).unflatten(0, (-1, views)).T
    return losses


def step_count(task: StrengthTask, setting: Setting) -> int:
    """How many the budget allows."""
    return max(1, task.evals // setting.views)


def shares(task: StrengthTask, setting: Setting) -> Iterable[float]:
    """The length of each step as a share of eps."""
    count = step_count(task, setting)
    for k in range(count):
        yield setting.step * ((1 + math.cos(math.pi * k / count)) / 2 if setting.schedule else 1.0)


def random_start(task: StrengthTask) -> Tensor:
    return task.ball.start(task.image, torch.Generator().manual_seed(stream(task.seed, "start")))


class Ask:
    """Gradients of the mean loss of new views."""

    def __init__(self, task: StrengthTask) -> None:
        self.task, self.show = task, NewView(task)

    def __call__(self, delta: Tensor, views: int, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """At pictures plus `delta`, before the views drawn through a `change`."""
        leaf = (self.task.image + delta).clamp(0, 1).requires_grad_()
        show = self.show if change is None else lambda pictures: self.show(change(pictures))
        loss = losses_of_views(self.task, show, leaf, views).mean(0).sum()
        return torch.autograd.grad(loss, leaf)[0]

    def near(self, delta: Tensor, views: int, radius: float) -> Tensor:
        """The mean over `views` points at random, at most `radius` eps away along each axis."""
        total = torch.zeros_like(delta)
        for _ in range(views):
            noise = (2 * torch.rand_like(delta) - 1) * radius * value_eps(self.task)
            total += self(delta + self.task.ball.restrict(noise), 1) / views
        return total


def value_eps(task: StrengthTask) -> float:
    """The share of single values in eps, which those of an L2 ball share."""
    return task.eps / math.sqrt(task.image[0].numel()) if isinstance(task.ball, L2) else task.eps


#: What stands for the gradient in a step: of `ask` at `delta`, before a move of `length` along the `total`.
Rule = Callable[[Ask, Tensor, Tensor, float, Setting], Tensor]


def plain(ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:  # noqa: ARG001
    """PGD (Madry et al. 2018); with momentum MI-FGSM (Dong et al. 2018)."""
    return ask(delta, setting.views)


def ahead(ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:
    """NI-FGSM (Lin et al. 2020): the gradient at the place where momentum leads."""
    return ask(delta - length * (setting.momentum or 0) * ask.task.ball.steepest(total), setting.views)


class Variance:
    """VMI-FGSM (Wang & He 2021): the gradient and, of the step before, how much that of points nearby differed."""

    def __init__(self) -> None:
        self.variance: Tensor | float = 0.0

    def __call__(self, ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:  # noqa: ARG002
        gradient = ask(delta, 1)
        result = gradient + self.variance
        self.variance = ask.near(delta, setting.views - 1, setting.size) - gradient
        return result


def relevance(ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:  # noqa: ARG001
    """GRA (Zhu et al. 2023), without its decay: the gradient and that of points nearby, weighed by their cosine."""
    gradient, near = ask(delta, 1), ask.near(delta, setting.views - 1, setting.size)
    cosine = F.cosine_similarity(gradient.flatten(1), near.flatten(1))[:, None, None, None]
    return cosine * gradient + (1 - cosine) * near


def sharpness(ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:  # noqa: ARG001
    """The gradient at the worst place nearby, as of SAM (Foret et al. 2021): up the loss by a share of eps."""
    half = setting.views // 2
    up = setting.size * ask.task.eps * ask.task.ball.steepest(ask(delta, half))
    return ask(ask.task.ball.project(delta + up, ask.task.image), half)


def shuffled_blocks(images: Tensor) -> Tensor:
    """BSR (Wang et al. 2024): two strips change places and turn by up to 24 degrees, two blocks of each likewise."""
    dim = int(torch.randint(2, 4, ()))
    strips = []
    for strip in shuffled_strips(images, dim):
        angle = float(torch.empty(()).uniform_(-24, 24))
        rotation = rotate(strip, angle, InterpolationMode.BILINEAR)
        strips.append(torch.cat(shuffled_strips(rotation, 5 - dim), 5 - dim))
    return torch.cat(strips, dim)


def shuffled_strips(images: Tensor, dim: int) -> list[Tensor]:
    """Two parts of random lengths, in random order."""
    cut = int(torch.randint(1, images.shape[dim], ()))
    parts = images.split([cut, images.shape[dim] - cut], dim)
    return [parts[i] for i in torch.randperm(2).tolist()]


def block_gradient(ask: Ask, delta: Tensor, total: Tensor, length: float, setting: Setting) -> Tensor:  # noqa: ARG001
    """BSR: the gradient through shuffled blocks."""
    return ask(delta, setting.views, shuffled_blocks)


def by_hand(make_rule: Callable[[], Rule], *grid: Setting) -> Contestant:
    """Steps along the sum of a rule's gradients, normalised, of which momentum keeps a share."""

    def run(task: StrengthTask, setting: Setting) -> Tensor:
        delta, total, ask, rule = random_start(task), torch.zeros_like(task.image), Ask(task), make_rule()
        for share in shares(task, setting):
            gradient = rule(ask, delta, total, share * task.eps, setting)
            total = (setting.momentum or 0) * total + F.normalize(gradient.flatten(1), 1).view_as(gradient)
            delta = task.ball.project(delta - share * task.eps * task.ball.steepest(total), task.image)
        return task.image + delta

    return contestant("torch", run, *grid)


def adam(task: StrengthTask, setting: Setting) -> Tensor:
    """Projected Adam (Kingma & Ba 2015)."""
    delta, ask = random_start(task), Ask(task)
    optimiser = torch.optim.Adam([delta], eps=1e-16)
    for share in shares(task, setting):
        delta.grad, optimiser.param_groups[0]["lr"] = ask(delta, setting.views), share * value_eps(task)
        optimiser.step()
        delta[:] = task.ball.project(delta, task.image)
    return task.image + delta


def ball_norm(task: StrengthTask) -> float:
    return 2 if isinstance(task.ball, L2) else math.inf


def one_view_model(task: StrengthTask) -> nn.Module:
    """Two classes from one new view of each picture."""
    return nn.Sequential(NewView(task), LogProbabilities(task)).eval()


def library_apgd(task: StrengthTask, setting: Setting) -> Tensor:
    """adversarial-library's APGD. Called below its public function, which cannot keep the best iterate of a given
    number of steps. The first class is never the likelier one, so the last success is the last iterate."""
    options = {"loss_function": "ce", "eot_iter": setting.views, "n_iter": step_count(task, setting) - 1}
    apgd, eps = adversarial_library("attacks.auto_pgd")._apgd, torch.full((len(task.image),), task.eps)
    model, labels = one_view_model(task), first_class(task)
    iterates: tuple[Tensor, ...] = apgd(model, task.image, labels, eps, ball_norm(task), **options)
    return iterates[0 if setting.keep else -1]


def auto_attack(task: StrengthTask, setting: Setting) -> Tensor:
    """AutoAttack's own APGD, in the package `pyautoattack`; likewise."""
    count, name = step_count(task, setting) - 1, "L2" if ball_norm(task) == 2 else "Linf"
    make = importlib.import_module("pyautoattack.autopgd_base").APGDAttack
    apgd = make(one_view_model(task), n_iter=count, norm=name, eps=task.eps, eot_iter=setting.views)
    apgd.init_hyperparam(task.image)
    iterates: tuple[Tensor, ...] = apgd.attack_single_run(task.image, first_class(task))
    return iterates[0 if setting.keep else -1]


def library_pgd(task: StrengthTask, setting: Setting) -> Tensor:
    """adversarial-library's PGD, for L-inf. It returns the last point at which it had a gradient."""
    attacked_images: Tensor = adversarial_library("attacks.projected_gradient_descent").pgd_linf(
        MeanOfViews(task, setting.views),
        task.image,
        first_class(task),
        task.eps,
        steps=step_count(task, setting),
        relative_step_size=setting.step,
    )
    return attacked_images


def torchattacks(task: StrengthTask, setting: Setting) -> Tensor:
    """torchattacks' `EOTPGD`; for L2 its `PGDL2`, the mean over views inside the model."""
    if ball_norm(task) == math.inf:
        return eotpgd(task, NewView(task), setting, step_count(task, setting))()
    model, length = MeanOfViews(task, setting.views).eval(), setting.step * task.eps
    pgd = importlib.import_module("torchattacks").PGDL2(model, task.eps, length, step_count(task, setting))
    attacked_images: Tensor = pgd(task.image, first_class(task))
    return attacked_images


def foolbox(task: StrengthTask, setting: Setting) -> Tensor:
    name = "L2PGD" if ball_norm(task) == 2 else "LinfPGD"
    return foolbox_pgd(task, NewView(task), setting, step_count(task, setting), name=name)()


def art_pgd(task: StrengthTask, setting: Setting) -> Tensor:
    """ART's `ProjectedGradientDescentPyTorch`, with a random start."""
    classifier = art_eot(task, NewView(task), setting.views)
    name = "art.attacks.evasion.projected_gradient_descent.projected_gradient_descent_pytorch"
    make, step = importlib.import_module(name).ProjectedGradientDescentPyTorch, setting.step * task.eps
    options = {"max_iter": step_count(task, setting), "num_random_init": 1, "decay": setting.momentum}
    pgd = make(classifier, norm=ball_norm(task), eps=task.eps, eps_step=step, verbose=False, **options)
    classes = torch.tensor([[1.0, 0.0]]).expand(len(task.image), -1)
    # `generate` is this, batch by batch, and then a check of success that EoT with several pictures breaks.
    return torch.as_tensor(pgd._generate_batch(task.image, classes, None, task.eps, step))


def our_loop(task: StrengthTask, optimiser: Any, views: int, steps: int, **options: Any) -> Tensor:
    parts: dict[str, Any] = {"encoder": task.counter, "objective": Away(), "perturbation": task.ball} | options
    eot = EOT(task.views, views=views, chunk=32)
    best = solve(task.image, task.anchor, optimiser=optimiser, eot=eot, steps=steps, seed=task.seed, **parts)
    return task.image + best.delta


def our_attack(task: StrengthTask, _: Setting) -> Tensor:
    """This project's attack with its defaults: views chosen by their noise, and the iterate chosen as a run does."""
    objective = Away() if task.anchor.is_floating_point() else Margin()
    options = {"objective": objective, "budget": task.evals, "adaptive": Adaptive()}
    return our_loop(task, Wiener(), 1, task.evals, **options)


def contestant(module: str, run: Callable[[StrengthTask, Setting], Tensor], *grid: Setting) -> Contestant:
    """An attack whose start, if a library draws it from torch's and numpy's own generators, follows from the seed."""

    def prepare(task: StrengthTask, setting: Setting) -> Attack:
        def seeded_run() -> Tensor:
            with seeded(task.seed):
                return run(task, setting).detach()

        return seeded_run

    return Contestant(module, prepare, grid)


def settings_grid(
    steps: tuple[float, ...], schedule: str = "", momentum: float | None = None, views: tuple[int, ...] = VIEWS
) -> tuple[Setting, ...]:
    """Lengths of a step, each with some numbers of views."""
    return tuple(Setting(a, n, momentum, schedule) for a, n in itertools.product(steps, views))


OWN_STEPS = tuple(Setting(0, n, keep=keep) for n, keep in itertools.product(VIEWS, ("best", "")))
PLAIN = settings_grid((0.05, 0.1, 0.2), views=(1, 2, 4))
COSINE = (0.2, 0.4, 0.8, 1.6)
NEAR = tuple(Setting(a, n, 1.0, "cosine", size=b) for a, n, b in itertools.product(COSINE[1:], (2, 4), (0.1, 1.5)))
#: Ours has one setting.
CONTESTANTS = {
    OURS: contestant("attacks", our_attack, Setting(0, 1)),
    "MI-FGSM": by_hand(
        lambda: plain, *settings_grid((0.1, 0.2), "", 1.0), *settings_grid((*COSINE, 3.2), "cosine", 1.0)
    ),
    "NI-FGSM": by_hand(lambda: ahead, *settings_grid(COSINE, "cosine", 1.0, (1, 2, 4))),
    "VMI-FGSM": by_hand(Variance, *NEAR),
    "GRA": by_hand(lambda: relevance, *NEAR),
    "SAM": by_hand(lambda: sharpness, *NEAR),
    "BSR": by_hand(lambda: block_gradient, *settings_grid(COSINE, "cosine", 1.0, (1, 4))),
    "PGD": by_hand(lambda: plain, *settings_grid((0.1,)), *settings_grid((0.1, *COSINE), "cosine")),
    "Adam": contestant("torch", adam, *settings_grid((0.2,)), *settings_grid((0.1, *COSINE), "cosine")),
    "adv-lib APGD": contestant("adv_lib", library_apgd, *OWN_STEPS),
    "AutoAttack APGD": contestant("pyautoattack", auto_attack, *OWN_STEPS),
    "adv-lib PGD": contestant("adv_lib", library_pgd, *PLAIN),
    "torchattacks": contestant("torchattacks", torchattacks, *PLAIN),
    "ART": contestant("art", art_pgd, *settings_grid((0.1, 0.2, 0.4, 0.8), "", 1.0, (1, 2, 4))),
    "Foolbox": contestant("foolbox", foolbox, *settings_grid((0.1, 0.2), views=(1, 4))),
}


def fits(name: str, ball: str) -> bool:
    """Whether a contestant can stay in a ball: adv-lib's PGD is for L-inf alone, no library's attack has a region."""
    if ball == "patch":
        return CONTESTANTS[name].module in ("attacks", "torch")
    return ball != "l2" or name != "adv-lib PGD"
