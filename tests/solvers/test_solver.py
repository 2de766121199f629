"""The best iterate, chosen on views that are common to all candidates."""

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, Linf, Toward, attack, bank, solve
from attacks.optimisers.square import Square
from attacks.solvers.solver import COMPARISONS, VIEWS
from tests.helpers.solving import search, watch
from transforms import Affine, Brightness, Compose, Uniform

SEEN = Compose([Affine(degrees=30, translate=0.1), Brightness(0.2)])
IDENTITY = Compose()


@pytest.fixture
def problem():
    """Two pictures, their anchors, and an attack so coarse that its later iterates are worse than earlier ones."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6)).eval()
    images = torch.rand(2, 3, 12, 14)
    net(images)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "seed": 5, "steps": 30}
    parts |= {"optimiser": PGD(1.0, 0.0, "constant"), "eot": EOT(SEEN, Uniform(), views=1)}
    return images, torch.randn(2, 6), parts


def losses(images, anchor, parts, delta, transforms=SEEN):
    """On the solver's own views."""
    views = bank(transforms, VIEWS if transforms.dims else 1, seed=parts["seed"], purpose="select")
    return views.losses(images + delta, anchor, parts["encoder"], parts["objective"], chunk=7).mean(1)


def test_best_is_never_worse_than_the_last_iterate(problem):
    images, anchor, parts = problem
    *_, last = attack(images, anchor, **parts)
    best = solve(images, anchor, **parts)
    final = losses(images, anchor, parts, last.delta)
    assert (best.loss <= final + 1e-6).all()
    assert (best.loss < final).any()  # or the problem is too easy to show anything
    torch.testing.assert_close(best.latest, final)


@pytest.mark.parametrize("transforms", [SEEN, IDENTITY], ids=["views", "identity"])
def test_best_is_the_best_of_the_looks_picture_by_picture(problem, transforms):
    images, anchor, parts = problem
    parts["eot"] = EOT(transforms, views=1)
    every = parts["steps"] // COMPARISONS
    looks = [step.delta for step in attack(images, anchor, **parts) if (step.index + 1) % every == 0]
    scores = torch.stack([losses(images, anchor, parts, delta, transforms) for delta in looks])
    best = solve(images, anchor, **parts)
    torch.testing.assert_close(best.loss, scores.min(0).values)
    assert torch.equal(best.step, (scores.argmin(0) + 1) * every - 1)
    for row, which in enumerate(scores.argmin(0)):
        assert torch.equal(best.delta[row], looks[which][row])


def test_solve_is_the_end_of_watch(problem):
    images, anchor, parts = problem
    *_, (_, last) = watch(images, anchor, **parts)
    for found, wanted in zip(solve(images, anchor, **parts), last, strict=True):
        assert torch.equal(found, wanted)


def test_watching_does_not_change_the_attack(problem):
    images, anchor, parts = problem
    plain = list(attack(images, anchor, **parts))
    watched = [step for step, _ in watch(images, anchor, **parts)]
    assert [step.index for step in watched] == list(range(30))
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(plain, watched, strict=True))


def test_best_only_improves(problem):
    images, anchor, parts = problem
    found = [best.loss for _, best in watch(images, anchor, **parts) if best is not None]
    assert (torch.stack(found).diff(dim=0) <= 0).all()


@pytest.mark.parametrize("steps", [1, 3, 11, 25])
def test_the_last_step_is_always_compared(problem, steps):
    images, anchor, parts = problem
    *_, (step, best) = watch(images, anchor, **parts | {"steps": steps})
    assert step.index == steps - 1
    torch.testing.assert_close(best.latest, losses(images, anchor, parts, step.delta))


@pytest.mark.parametrize("perturbation", [Linf(0.1), L2(1.0)])
def test_best_is_feasible(problem, perturbation):
    images, anchor, parts = problem
    best = solve(images, anchor, **parts | {"perturbation": perturbation})
    assert (perturbation.norm(best.delta) <= perturbation.eps * (1 + 1e-6)).all()
    assert 0 <= (images + best.delta).min() <= (images + best.delta).max() <= 1


def test_a_picture_does_not_feel_its_neighbours(problem):
    images, anchor, parts = problem
    parts["perturbation"] = Linf(0.1, random_start=False)
    together = solve(images.double(), anchor.double(), **parts | {"encoder": parts["encoder"].double()})
    for i in range(2):
        alone = solve(images[[i]].double(), anchor[[i]].double(), **parts)
        torch.testing.assert_close(alone.delta, together.delta[[i]], rtol=0, atol=1e-12)
        assert alone.step == together.step[i]


def test_solve_searches_if_the_optimiser_is_gradient_free(problem):
    images, anchor, parts = problem
    parts["optimiser"] = Square()
    best = solve(images, anchor, **parts)
    every = parts["steps"] // COMPARISONS
    looks = [step.delta for step in search(images, anchor, **parts) if (step.index + 1) % every == 0]
    scores = torch.stack([losses(images, anchor, parts, delta) for delta in looks])
    torch.testing.assert_close(best.loss, scores.amin(0))
    *_, (step, _) = watch(images, anchor, **parts)
    assert not step.estimate.grad.any()
