"""The attack against the worst views of each step, in the loop."""

import pytest
import torch

from attacks import EOT, CVaR, Linf, Universal, attack
from attacks.eot import Adaptive
from attacks.solvers.selection import selection
from attacks.solvers.worst import Adversary
from tests.helpers.solving import VIEWS, look_risk, mark_checked, small_problem, split, watch

SETS = {"own": Linf(0.1), "shared": Universal(Linf(0.1))}
every_set = pytest.mark.parametrize("perturbation", SETS.values(), ids=SETS)


@pytest.fixture
def problem():
    images, anchor, parts = small_problem()
    return images, anchor, parts | {"eot": EOT(VIEWS, views=2, chunk=5), "steps": 12}


@pytest.mark.slow
@every_set
def test_adversary_without_refinement_equals_the_cvar_attack(problem, perturbation):
    # The worst 2 of 8 have the gradient of CVaR(1/4) of 8, so the attacks take the same path. Without an adversary,
    # images that share a delta each have their own views; for one image these are the same.
    images, anchor, parts = problem
    if perturbation.shared:
        images, anchor = images[:1], anchor[:1]
    parts |= {"perturbation": perturbation}
    result = list(attack(images, anchor, adversary=Adversary(8), **parts))
    expected = list(attack(images, anchor, **parts | {"eot": EOT(VIEWS, views=8, risk=CVaR(1 / 4))}))
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a.delta, b.delta, rtol=0, atol=1e-9)
        torch.testing.assert_close(a.estimate.value, b.estimate.value, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("refine_steps", [0, 2])
@every_set
def test_passes_equal_the_counted_evaluations(problem, perturbation, refine_steps):
    images, anchor, parts = problem
    rows, net = [], parts["encoder"]
    parts |= {
        "perturbation": perturbation,
        "encoder": mark_checked(lambda pixels: (rows.append(len(pixels)), net(pixels))[1]),
    }
    for step in attack(images, anchor, adversary=Adversary(4, refine_steps), **parts):
        cost = 2 + 4 + (2 * (refine_steps + 1) if refine_steps else 0)
        assert sum(rows) == step.evals == 3 * (step.index + 1) * cost


def test_budget_includes_the_passes_of_the_adversary(problem):
    images, anchor, parts = problem
    budget = torch.tensor([12, 17, 18])
    steps = list(attack(images, anchor, adversary=Adversary(4), **parts | {"budget": budget}))
    assert [step.active.tolist() for step in steps] == [[True] * 3, [True] * 3, [False, False, True]]
    assert [step.last for step in steps] == [False, False, True]


def test_iterates_are_compared_by_cvar(problem):
    images, anchor, parts = problem
    parts |= {"adversary": Adversary(8)}
    *_, (step, best) = watch(images, anchor, **parts)
    assert selection(*split(images, anchor, **parts)).risk == CVaR(1 / 4)
    torch.testing.assert_close(best.latest, look_risk(images, anchor, step.delta, **parts))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"adaptive": Adaptive(), "budget": 100}, "`adaptive` trusts random views"),
        ({"eot": EOT(VIEWS, views=2, risk=CVaR(0.5))}, "CVaR weighs views.*use the risk Mean"),
        ({"budget": 5}, "`budget`.*at least 6"),
    ],
    ids=["adaptive", "risk", "budget"],
)
def test_incompatible_options_are_refused(problem, parts, message):
    images, anchor, arguments = problem
    with pytest.raises(ValueError, match=message):
        next(attack(images, anchor, adversary=Adversary(4), **arguments | parts))
