"""Many pictures at once: separate budgets, leaving the batch, and one perturbation for all pictures."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, Linf, Toward, attack, bank, solve
from attacks.eot.protocols import Objective
from attacks.eot.risk import CVaR
from attacks.perturbations.universal import Universal
from attacks.solvers.selection import VIEWS, selection
from tests.helpers.solving import look_risk, split, watch
from transforms import Affine, Brightness, Compose

CAMERA = Compose([Affine(degrees=30, translate=0.1), Brightness(0.2)])
double = torch.float64


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(120, 6)).to(double).eval()
    images = torch.rand(4, 3, 12, 14, dtype=double)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "seed": 5, "steps": 20}
    return images, torch.randn(4, 6, dtype=double), parts | {"optimiser": PGD(), "eot": EOT(CAMERA, views=4, chunk=7)}


def run(images, anchor, parts, leaving=None):
    """All steps; `leaving` maps a step's index to the pictures that are solved after it."""
    going, steps, reply = attack(images, anchor, **parts), [], None
    while True:
        try:
            steps.append(going.send(reply))
        except StopIteration:
            return steps
        reply = None
        if leaving and steps[-1].index in leaving:
            reply = torch.tensor([i in leaving[steps[-1].index] for i in range(len(images))])


def test_the_attack_ends_when_all_are_solved(problem):
    images, anchor, parts = problem
    assert len(run(images, anchor, parts, {3: [0, 1], 6: [2, 3]})) == 7


@pytest.mark.parametrize("budget", [3, 0, 2.5, torch.tensor([8, 8]), torch.tensor([8, 8, 8, 3])])
def test_a_budget_must_pay_for_a_step(problem, budget):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`budget` must be a whole number"):
        next(attack(images, anchor, **parts | {"budget": budget}))


def test_solve_stops_when_the_loss_on_the_bank_reaches_the_threshold(problem):
    images, anchor, parts = problem
    best = solve(images, anchor, **parts)
    stop = float(best.loss.sort().values[1:3].mean())  # two of four reach it
    *_, (step, stop_best) = watch(images, anchor, stop=stop, **parts)
    assert ((stop_best.loss <= stop) == (best.loss <= stop)).all()
    assert (stop_best.loss <= stop).sum() == 2
    assert step.evals < 4 * 80
    torch.testing.assert_close(stop_best.loss[stop_best.loss > stop], best.loss[best.loss > stop], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_a_universal_perturbation_is_solved_when_it_solves_all_pictures(problem):
    images, anchor, parts = problem
    parts |= {"perturbation": Universal(Linf(0.1)), "steps": 40}
    shared_anchor = anchor[:1].expand(4, -1)
    *_, (full_run, best) = watch(images, shared_anchor, **parts)
    highest = float(look_risk(images, shared_anchor, best.delta, full=True, **parts).max())
    stop = highest + 0.02  # the whole run reaches it, with every picture
    *_, (step, stop_best) = watch(images, shared_anchor, stop=stop, **parts)
    assert (stop_best.loss <= stop).all()
    assert step.evals <= full_run.evals < 4 * 160  # nothing comes any more
    assert step.active.all()  # none was dropped before
    *_, (step, late) = watch(images, shared_anchor, stop=highest - 0.02, **parts)
    assert step.evals == full_run.evals
    assert torch.equal(late.delta, best.delta)


@pytest.mark.slow
def test_the_last_iterate_within_the_budget_is_a_candidate(problem):
    images, anchor, parts = problem
    parts |= {"steps": 40, "perturbation": Linf(0.1, random_start=False)}
    parts["budget"] = torch.tensor([4 * 7, 4 * 40, 4 * 40, 4 * 40])
    *_, (step, result) = watch(images, anchor, **parts)
    assert torch.equal(step.delta[0], run(images, anchor, parts)[6].delta[0])
    torch.testing.assert_close(result.latest, look_risk(images, anchor, step.delta, **parts))


@pytest.mark.slow
def test_the_best_iterate_is_chosen_by_the_risk(problem):
    risk = CVaR(0.25)
    images, anchor, parts = problem
    eot = EOT(CAMERA, views=24, risk=risk)
    parts |= {"eot": eot}
    *_, (step, best) = watch(images, anchor, **parts)
    assert selection(*split(images, anchor, **parts)).risk == risk
    torch.testing.assert_close(best.latest, look_risk(images, anchor, step.delta, **parts))


@pytest.mark.slow
@pytest.mark.parametrize("inner", [Linf(0.1), L2(1.0)], ids=["linf", "l2"])
def test_a_universal_perturbation_beats_noise_on_every_picture(problem, inner):
    images, anchor, parts = problem
    perturbation = Universal(inner)
    shared_anchor = anchor[:1].expand(4, -1)
    best = solve(images, shared_anchor, **parts | {"perturbation": perturbation})
    assert best.delta.shape == (1, 3, 12, 14)
    assert (perturbation.norm(best.delta) <= inner.eps * (1 + 1e-9)).all()
    noise = perturbation.noise(images, torch.Generator().manual_seed(1))
    views = bank(CAMERA, VIEWS, seed=5, purpose="select")
    views = views._replace(u=views.u.to(images))
    batch_sizes = (images + noise).clamp(0, 1)
    reference = views.losses(batch_sizes, shared_anchor, parts["encoder"], parts["objective"], 64).mean(1)
    assert (best.loss < reference).all()


def test_a_universal_perturbation_follows_the_mean_gradient(problem):
    # Plain PGD by hand, on the mean over pictures and views; every call draws the same views.
    def views(n, dims, *, seed, step=0):
        return torch.rand(n, dims, generator=torch.Generator().manual_seed(7), dtype=double)

    images, anchor, parts = problem
    parts = parts | {"eot": replace(parts["eot"], draws=views)}
    parts |= {"perturbation": Universal(Linf(0.1, random_start=False)), "optimiser": PGD(0.25, 0.0, "constant")}
    first = run(images, anchor, parts | {"steps": 1})[0]
    plain_attack = attack(images, anchor, **parts | {"perturbation": Linf(0.1, random_start=False), "steps": 1})
    mean = next(plain_attack).estimate.grad.mean(0, keepdim=True)
    torch.testing.assert_close(first.estimate.grad, mean, rtol=1e-10, atol=1e-12)
    assert torch.equal(first.delta, -0.025 * mean.sign())


class Cut(nn.Module):
    """An encoder whose graph is cut after some calls."""

    def __init__(self, net, calls):
        super().__init__()
        self.net, self.calls = net, calls

    def forward(self, pixels):
        self.calls -= pixels.requires_grad
        return self.net(pixels if self.calls >= 0 else pixels.detach())


@pytest.mark.slow
def test_a_gradient_that_becomes_zero_gives_a_warning_and_ends_its_pictures(problem):
    images, anchor, parts = problem
    parts |= {"eot": EOT(CAMERA, views=1), "encoder": Cut(parts["encoder"], 3).eval()}
    with pytest.warns(UserWarning, match=r"image\(s\) \[0, 1, 2, 3\] has been exactly zero for 5 steps \(step 7\)"):
        steps = run(images, anchor, parts)
    assert len(steps) == 8 and steps[-1].last


def test_a_loss_at_its_minimum_does_not_end_the_other_pictures(problem):
    # The first picture's loss becomes flat, as a cross-entropy does once its label is reached.
    images, anchor, parts = problem
    anchor[:, 0] = 0
    anchor[0, 0] = 1
    floor = -math.inf

    class Floor(Objective):
        def __call__(self, features, anchor):
            loss = (features * anchor).sum(1)
            return torch.where(anchor[:, 0] == 1, loss.clamp(min=floor), loss)

    parts |= {"objective": Floor(), "eot": EOT(views=1), "steps": 30}
    free = run(images, anchor, parts)
    floor = float(free[0].estimate.mean[0]) - 1e-4
    with pytest.warns(UserWarning, match=r"image\(s\) \[0\] has been"):
        steps = run(images, anchor, parts)
    assert not steps[-1].active[0] and steps[-1].active[1:].all()
    assert torch.equal(steps[-1].delta[1:], free[-1].delta[1:])
