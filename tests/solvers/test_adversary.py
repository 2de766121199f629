"""The attack against the worst views of each step, in the loop."""

import pytest
import torch
from torch import nn

from attacks import EOT, PGD, Adaptive, Away, CVaR, Linf, Toward, Universal, attack, bank, solve
from attacks.objectives.embedding import Paired
from attacks.optimisers.square import Square
from attacks.solvers.solver import VIEWS
from attacks.solvers.worst import Adversary
from tests.helpers.solving import search
from transforms import Affine, Brightness, Compose

SEEN = Compose([Affine(degrees=30, translate=0.1), Brightness(0.2)])
SETS = {"own": Linf(0.1), "shared": Universal(Linf(0.1))}
every_set = pytest.mark.parametrize("perturbation", SETS.values(), ids=SETS)
double = torch.float64


@pytest.fixture
def problem():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6)).double().eval()
    images = torch.rand(3, 3, 12, 14, dtype=double)
    net(images)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "optimiser": PGD()}
    return (
        images,
        torch.randn(3, 6, dtype=double),
        parts | {"eot": EOT(SEEN, views=2, chunk=5), "steps": 12, "seed": 5},
    )


@every_set
def test_without_refinement_it_is_the_attack_on_the_tail(problem, perturbation):
    # The worst 2 of 8 have the gradient of CVaR(1/4) of 8, so the attacks take the same path. Without an adversary,
    # images that share a delta have views of their own; of one image these are the same.
    images, anchor, parts = problem
    if perturbation.shared:
        images, anchor = images[:1], anchor[:1]
    parts |= {"perturbation": perturbation}
    found = list(attack(images, anchor, adversary=Adversary(8), **parts))
    wanted = list(attack(images, anchor, **parts | {"eot": EOT(SEEN, views=8, risk=CVaR(1 / 4))}))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=0, atol=1e-9)
        torch.testing.assert_close(a.estimate.value, b.estimate.value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("refine_steps", [0, 2])
@every_set
def test_passes_are_those_that_are_counted(problem, perturbation, refine_steps):
    images, anchor, parts = problem
    rows, net = [], parts["encoder"]
    parts |= {"perturbation": perturbation, "encoder": lambda pixels: (rows.append(len(pixels)), net(pixels))[1]}
    for step in attack(images, anchor, adversary=Adversary(4, refine_steps), **parts):
        cost = 2 + 4 + (2 * (refine_steps + 1) if refine_steps else 0)
        assert sum(rows) == step.evals == 3 * (step.index + 1) * cost


def test_a_budget_pays_for_the_adversary_too(problem):
    images, anchor, parts = problem
    budget = torch.tensor([12, 17, 18])
    steps = list(attack(images, anchor, adversary=Adversary(4), **parts | {"budget": budget}))
    assert [step.active.tolist() for step in steps] == [[True] * 3, [True] * 3, [False, False, True]]
    assert [step.last for step in steps] == [False, False, True]
    with pytest.raises(ValueError, match=r"`budget`.*at least 6"):
        next(attack(images, anchor, adversary=Adversary(4), **parts | {"budget": 5}))


def test_it_lowers_the_worst_views_more_than_the_mean_does(problem):
    images, anchor, parts = problem
    views = bank(SEEN, 256, seed=1, purpose="held-out")

    def worst(delta):
        losses = views.losses(images + delta, anchor, parts["encoder"], Toward(), 64)
        return losses.topk(16, dim=1).values.mean()

    *_, plain = attack(images, anchor, **parts | {"steps": 60})
    *_, minmax = attack(images, anchor, adversary=Adversary(16), **parts | {"steps": 60})
    assert worst(minmax.delta) < worst(plain.delta)


def test_its_iterates_are_compared_by_the_tail(problem):
    images, anchor, parts = problem
    best = solve(images, anchor, adversary=Adversary(8), **parts)
    views = bank(SEEN, VIEWS, seed=5, purpose="select")
    losses = views.losses(images + best.delta, anchor, parts["encoder"], Toward(), 64)
    torch.testing.assert_close(best.loss, CVaR(1 / 4).value(losses))


def test_a_picture_does_not_feel_its_neighbours(problem):
    images, anchor, parts = problem
    parts |= {"perturbation": Linf(0.1, random_start=False)}
    *_, together = attack(images, anchor, adversary=Adversary(4, 2), **parts)
    for i in range(3):
        *_, alone = attack(images[[i]], anchor[[i]], adversary=Adversary(4, 2), **parts)
        torch.testing.assert_close(alone.delta, together.delta[[i]], rtol=0, atol=1e-12)


def test_it_does_not_go_with_adaptive_views(problem):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`adaptive` trusts random views"):
        next(attack(images, anchor, adversary=Adversary(4), adaptive=Adaptive(0.7), budget=100, **parts))


def test_it_does_not_go_with_another_risk(problem):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match=r"CVaR weighs views.*use the risk Mean"):
        next(attack(images, anchor, adversary=Adversary(4), **parts | {"eot": EOT(SEEN, views=2, risk=CVaR(0.5))}))


def test_with_a_paired_objective_the_adversary_follows_the_slope_of_both_views(problem):
    # What it is given to climb has, by its coordinates, the derivative that finite differences have.
    images, anchor, parts = problem
    slopes = []

    class Spy(Adversary):
        def views(self, problem, delta, eot, n, **rest):
            u = eot.draws(n, eot.transforms.dims, seed=3, step=0).to(delta)
            which = torch.zeros(len(u), dtype=torch.long)
            leaf = u.clone().requires_grad_()

            def losses(u):
                return problem.losses(eot.transforms, delta[which], which, u)

            (slope,) = torch.autograd.grad(losses(leaf).sum(), leaf)
            for axis in range(u.shape[1]):
                by = torch.zeros_like(u)
                by[:, axis] = 1e-6
                slopes.append((slope[:, axis], (losses(u + by) - losses(u - by)).detach() / 2e-6))
            return super().views(problem, delta, eot, n, **rest)

    next(attack(images, anchor, adversary=Spy(4, 1), **parts | {"objective": Paired(Away("l2"))}))
    assert slopes
    for ours, measured in slopes:
        torch.testing.assert_close(ours, measured, rtol=1e-4, atol=1e-7)


def test_a_search_has_no_use_for_it(problem):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`adversary` chooses new views"):
        next(search(images, anchor, adversary=Adversary(8), **parts | {"optimiser": Square()}))
