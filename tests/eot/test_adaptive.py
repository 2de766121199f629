"""More views if the gradient is too noisy, within the budget."""

import itertools
import math

import pytest
import torch

from attacks import EOT, attack
from attacks.eot.adaptive import Adaptive, Views
from attacks.eot.estimate import Estimate
from tests.helpers.solving import small_problem
from transforms import Affine, Brightness, Compose, Fixed, Grid, Sobol

SEEN = Compose([Affine(degrees=90, translate=0.3), Brightness(0.2)])


def estimate(*snr):
    some = torch.zeros(len(snr))
    return Estimate(some, some, torch.tensor(snr), some, 8, 8, some)


@pytest.mark.parametrize(
    ("snr", "times"),
    [
        ([0.1] * 7, [1, 1, 2, 2, 2, 4, 4]),
        ([0.1, 0.1, 100.0, 0.1, 0.1, 0.1], [1, 1, 1, 1, 1, 2]),  # a cosine of 0.995 restarts the count
        ([math.nan] * 3, [1, 1, 2]),  # of a single view
    ],
)
def test_views_double_after_patience_and_the_count_restarts(snr, times):
    views = [Views()]
    for value in snr:
        views.append(Adaptive(0.7, 3).next(views[-1], estimate(value, value), base=8, steps=10, budget=10**6))
    assert [each.times for each in views[1:]] == times


@pytest.mark.parametrize(("budget", "times"), [(159, 1), (160, 2)])
def test_every_planned_step_stays_within_the_budget(budget, times):
    assert Adaptive(0.7, 1).next(Views(), estimate(0.0), base=8, steps=10, budget=budget).times == times


@pytest.mark.parametrize("bad", [{"cosine": 0.0}, {"cosine": 1.0}, {"patience": 0}, {"patience": 1.5}])
def test_invalid_arguments_are_refused(bad):
    with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must"):
        Adaptive(**{"cosine": 0.7} | bad)


class Recorded(Sobol):
    """Sobol points that record their steps."""

    steps: list = []  # noqa: RUF012

    def __call__(self, n, dims, *, seed, step=0):
        self.steps.append(step)
        return super().__call__(n, dims, seed=seed, step=step)


@pytest.fixture
def problem():
    images, anchor, parts = small_problem(2, torch.float32)
    return images, anchor, parts | {"steps": 24}


def test_an_attack_raises_its_views_within_the_budget(problem):
    images, anchor, parts = problem
    draws = Recorded()
    draws.steps.clear()
    rule = Adaptive(cosine=0.999, patience=3)
    steps = list(attack(images, anchor, eot=EOT(SEEN, draws, views=2), adaptive=rule, budget=150, **parts))
    views = [step.estimate.views for step in steps]
    assert len(steps) == 24
    assert views[:4] == [2, 2, 2, 4]
    assert all(later in (earlier, 2 * earlier) for earlier, later in itertools.pairwise(views))
    assert sum(views) <= 150
    assert steps[-1].evals == 2 * sum(views)
    # Consecutive blocks, none repeated; the first two are also compared before the run.
    assert draws.steps == [0, 1, *range(sum(views) // 2)]
    assert max(views) > 4


def test_without_noise_views_are_not_raised(problem):
    images, anchor, parts = problem
    rule = Adaptive(cosine=0.5, patience=1)
    seen = Compose([Brightness(1e-4)])
    steps = list(attack(images, anchor, eot=EOT(seen, views=4), adaptive=rule, budget=10**4, **parts))
    assert {step.estimate.views for step in steps} == {4}


@pytest.mark.parametrize(
    ("draws", "budget", "message"),
    [(Fixed(), 10**4, "draws that are new"), (Grid(), 10**4, "draws that are new"), (Sobol(), None, "a `budget`")],
    ids=["fixed", "grid", "budget"],
)
def test_a_budget_and_fresh_draws_are_required(problem, draws, budget, message):
    images, anchor, parts = problem
    eot = EOT(Compose([Brightness(0.2)]), draws, views=2)
    with pytest.raises(ValueError, match=f"`adaptive` needs {message}"):
        next(attack(images, anchor, eot=eot, adaptive=Adaptive(0.7), budget=budget, **parts))
