"""Custom parts, written against the protocols alone, in every place that takes a part."""

import pytest
import torch
import torch.nn.functional as F

from attacks import EOT, bank, evaluate, solve
from attacks.eot.protocols import Objective, Optimiser, Proposer
from attacks.evaluation.sanity.battery import MASKING
from attacks.perturbations.base import PerturbationSet
from attacks.runtime.values import load_values, write_values
from tests.helpers.solving import examine, watch, worst_views
from transforms import Affine, Brightness, Compose
from transforms.scene import scene_of

CAMERA = Compose([Affine(degrees=10, translate=0.05), Brightness(0.1)])


class Tint(PerturbationSet):
    """One colour for each picture, added to all its pixels, within a box of radius eps."""

    eps = reach = 0.2
    random_start = True

    def start(self, images, generator):
        shift = torch.rand(len(images), 3, 1, 1, generator=generator).to(images)
        return self.move(torch.zeros_like(images), (0.2 * shift - 0.1).expand_as(images), images)

    def noise(self, images, generator):
        return self.move(10 * self.start(images, generator).sign(), torch.zeros_like(images), images)

    def scene(self, images, delta):
        return scene_of((images + delta).clamp(0, 1))

    def descend(self, grad, length, delta, images):
        return -torch.as_tensor(length).to(grad).view(-1, 1, 1, 1) * grad.sum((2, 3), keepdim=True).sign()

    def move(self, delta, by, images):
        return (delta + by).mean((2, 3), keepdim=True).clamp(-self.eps, self.eps).expand_as(images).contiguous()

    def norm(self, delta):
        return delta.flatten(1).abs().amax(1)

    def quantise(self, delta, images):
        return ((images + delta).clamp(0, 1) * 255).round() / 255 - images


class Shift(Objective):
    """Minus the mean absolute difference to the anchor."""

    @property
    def stationary_at_anchor(self):
        return True

    def __call__(self, features, anchor):
        return -(features - anchor).abs().mean(1)


class Heavy(Optimiser):
    """Steps of a tenth of the reach along a running mean of the gradients."""

    def init(self, delta, *, reach, steps):
        return torch.zeros_like(delta), reach / 10

    def step(self, delta, estimate, state, constraint, done):
        mean = 0.5 * state[0] + estimate.grad
        return constraint.project(delta, constraint.steepest(mean, state[1], delta)), (mean, state[1])


class Guess(Proposer):
    """Signs drawn at random."""

    def direction(self, like, *, step, steps, generator):
        return torch.randn(1, *like.shape[1:], generator=generator).sign().to(like)


WEIGHTS = torch.randn(3 * 16, 8, generator=torch.Generator().manual_seed(0)) / 7


def features(images):
    """An encoder that is a function."""
    return (F.adaptive_avg_pool2d(images, 4).flatten(1) @ WEIGHTS).tanh()


@pytest.fixture
def images():
    rough = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    return 0.2 + 0.6 * F.interpolate(rough, (20, 24), mode="bilinear")


def parts(optimiser, **changes):
    defaults = {"encoder": features, "objective": Shift(), "perturbation": Tint(), "optimiser": optimiser}
    return defaults | {"eot": EOT(CAMERA, views=2), "steps": 6, "seed": 3} | changes


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [Heavy(), Guess()], ids=["heavy", "guess"])
def test_custom_parts_are_solved_evaluated_and_resumed(images, optimiser, tmp_path):
    perturbation, anchor, setup = Tint(), features(images), parts(optimiser)
    best = solve(images, anchor, **setup)
    delta = perturbation.quantise(best.delta, images)
    scene, views = perturbation.evaluated(images, delta), bank(CAMERA, 8, seed=0, purpose="evaluate")
    clean, attack_loss = (views.losses(x, anchor, features, Shift(), 5).mean() for x in (images, scene))
    assert attack_loss < clean and (perturbation.norm(best.delta) <= perturbation.eps).all()
    assert perturbation.written(images, delta).shape == images.shape
    scores = evaluate(scene, anchor, anchor, encoder=features, bank=views)
    assert scores.cosine.mean() < evaluate(images, anchor, anchor, encoder=features, bank=views).cosine.mean()
    worst = worst_views(scene, anchor, encoder=features, objective=Shift(), transforms=CAMERA, k=4, refine_steps=1)
    assert worst.losses.isfinite().all()

    progress = list(watch(images, anchor, restarts=2, **setup))
    write_values(tmp_path / "state", progress[3][0].state, "key")
    rest = list(watch(images, anchor, restarts=2, state=load_values(tmp_path / "state", "key"), **setup))
    for (ours, best), (expected, last) in zip(rest, progress[4:], strict=True):
        assert torch.equal(ours.delta, expected.delta) and ours.evals == expected.evals
        assert best is last is None or all(torch.equal(a, b) for a, b in zip(best, last, strict=True))


def test_the_sanity_checks_accept_custom_parts(images):
    sanity = examine(images, features(images), views=2, **parts(Heavy(), steps=20))
    failed = {check.name for check in sanity.failed}
    assert not failed & set(MASKING) - {"largest radius"}, sanity.failed
