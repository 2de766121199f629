"""More views where the gradient is too noisy, and never more than the budget pays for."""

import itertools

import pytest
import torch
from torch import nn

from attacks import EOT, PGD, Linf, Toward, attack
from attacks.eot.adaptive import Adaptive, Views
from attacks.eot.estimate import Estimate
from transforms import Affine, Brightness, Compose, Fixed, Grid, Sobol

SEEN = Compose([Affine(degrees=90, translate=0.3), Brightness(0.2)])


def estimate(*snr):
    some = torch.zeros(len(snr))
    return Estimate(some, some, torch.tensor(snr), some, 8, 8, some)


def test_doubles_after_patience_and_counts_anew():
    rule, views = Adaptive(cosine=0.7, patience=3), Views()
    seen = []
    for _ in range(7):
        views = rule.next(views, estimate(0.1, 0.2), base=8, steps=10, budget=10**6)
        seen.append(views.times)
    assert seen == [1, 1, 2, 2, 2, 4, 4]


def test_a_good_step_starts_the_count_again():
    rule, views = Adaptive(cosine=0.7, patience=2), Views()
    for snr in (0.1, 100.0, 0.1):  # cosine 0.3, 0.995, 0.3
        views = rule.next(views, estimate(snr), base=8, steps=10, budget=10**6)
    assert views == Views(1, 1)


def test_one_view_tells_nothing_so_more_are_taken():
    views = Adaptive(0.7, 1).next(Views(), estimate(float("nan")), base=1, steps=1, budget=2)
    assert views.times == 2


@pytest.mark.parametrize("budget", [159, 160])
def test_every_planned_step_stays_paid_for(budget):
    views = Adaptive(0.7, 1).next(Views(), estimate(0.0), base=8, steps=10, budget=budget)
    assert views.times == (2 if budget >= 160 else 1)


@pytest.mark.parametrize("bad", [{"cosine": 0.0}, {"cosine": 1.0}, {"patience": 0}, {"patience": 1.5}])
def test_refuses(bad):
    with pytest.raises(ValueError, match=f"`{next(iter(bad))}` must"):
        Adaptive(**{"cosine": 0.7} | bad)


class Recorded(Sobol):
    """Sobol points, and what was asked for."""

    asked: list = []  # noqa: RUF012

    def __call__(self, n, dims, *, seed, step=0):
        self.asked.append((n, step))
        return super().__call__(n, dims, seed=seed, step=step)


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.LazyLinear(6)).eval()
    images = torch.rand(2, 3, 12, 14)
    net(images)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "optimiser": PGD(), "steps": 24}
    return images, torch.randn(2, 6), parts


def test_an_attack_raises_its_views_within_the_budget_on_one_stream(problem):
    images, anchor, parts = problem
    draws = Recorded()
    draws.asked.clear()
    rule = Adaptive(cosine=0.999, patience=3)
    steps = list(attack(images, anchor, eot=EOT(SEEN, draws, views=2), adaptive=rule, budget=150, **parts))
    views = [step.estimate.views for step in steps]
    assert len(steps) == 24
    assert views[:4] == [2, 2, 2, 4]
    assert all(later in (now, 2 * now) for now, later in itertools.pairwise(views))
    assert sum(views) <= 150
    assert steps[-1].evals == 2 * sum(views)
    # Block after block, none twice; the first two are asked for once more, to see that they differ.
    assert [at for _, at in draws.asked] == [0, 1, *range(sum(views) // 2)]
    assert max(views) > 4


def test_without_noise_nothing_is_raised(problem):
    images, anchor, parts = problem
    rule = Adaptive(cosine=0.5, patience=1)
    seen = Compose([Brightness(1e-4)])
    steps = list(attack(images, anchor, eot=EOT(seen, views=4), adaptive=rule, budget=10**4, **parts))
    assert {step.estimate.views for step in steps} == {4}


@pytest.mark.parametrize("draws", [Fixed(), Grid()], ids=["fixed", "grid"])
def test_needs_draws_that_are_new(problem, draws):
    images, anchor, parts = problem
    seen = Compose([Brightness(0.2)])
    with pytest.raises(ValueError, match="`adaptive` needs draws that are new"):
        next(attack(images, anchor, eot=EOT(seen, draws, views=2), adaptive=Adaptive(0.7), budget=10**4, **parts))


def test_needs_a_budget(problem):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`adaptive` needs a `budget`"):
        next(attack(images, anchor, eot=EOT(SEEN), adaptive=Adaptive(0.7), **parts))
