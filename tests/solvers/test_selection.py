"""The iterate of an attack chosen on the views of another, with early stopping."""

from dataclasses import replace

import pytest
import torch

from attacks import EOT, Adversary, Linf, attack
from attacks.eot.problem import Options, Problem
from attacks.eot.risk import CVaR
from attacks.perturbations.universal import Universal
from attacks.solvers.solver import PATIENCE, Selection, selection
from tests.helpers.solving import VIEWS, small_problem, watch
from transforms import Compose, Uniform

STEPS = 60


@pytest.fixture
def problem():
    """Four pictures attacked on the pictures themselves, and how an attack on views would choose."""
    torch.manual_seed(0)
    images, anchor, parts = small_problem(4)
    parts |= {"eot": EOT(views=1), "steps": STEPS}
    of_views = parts | {"eot": EOT(VIEWS, Uniform(), views=4, chunk=9, risk=CVaR(0.5)), "seed": 8}
    return images, anchor, parts, replace(choice(images, anchor, of_views), early=True)


def choice(images, anchor, parts):
    own = dict(parts)
    problem = Problem(images, anchor, own.pop("encoder"), own.pop("objective"), own.pop("perturbation"))
    return selection(problem, Options(**own))


def losses(images, anchor, parts, select, deltas):
    """The loss (K,N) of each picture under each of K deltas, on the bank."""
    net, objective, seen = parts["encoder"], parts["objective"], [(images + delta).clamp(0, 1) for delta in deltas]
    return torch.stack([select.risk.value(select.bank.losses(each, anchor, net, objective, 9)) for each in seen])


def expected(loss, due):
    """After how many steps a picture's iterate is chosen and after how many it leaves, from its compared losses."""
    best, at = torch.inf, 0
    for done, value in zip(due, loss.tolist(), strict=True):
        if value < best:
            best, at = value, done
        if done >= PATIENCE * at:
            return at, done
    return at, due[-1]


def schedule(steps):
    return sorted({round(2 ** (k / 2)) for k in range(40) if round(2 ** (k / 2)) <= steps} | {steps})


def test_early_comparisons_are_powers_of_the_root_of_two(problem):
    select = problem[3]
    assert [n for n in range(1, 10**4) if select.due(n, 10**4)] == schedule(9999)[:-1]
    assert schedule(50)[:10] == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_each_picture_has_its_best_compared_iterate_and_leaves_when_later_ones_do_not_improve(problem, shared):
    images, anchor, parts, select = problem
    if shared:
        parts = parts | {"perturbation": Universal(Linf(0.1))}
        anchor = anchor[:1].expand(4, -1)
    due = schedule(STEPS)
    deltas = [step.delta for step in attack(images, anchor, **parts) if step.index + 1 in due]
    all_losses = losses(images, anchor, parts, select, deltas)
    steps, results = zip(*watch(images, anchor, select=select, **parts), strict=True)
    took, best = torch.stack([step.active for step in steps]).sum(0), results[-1]
    judged = all_losses.mean(1, keepdim=True).expand(-1, 4) if shared else all_losses
    rule = [expected(judged[:, i], due) for i in range(4)]
    assert list(zip((best.step + 1).tolist(), took.tolist(), strict=True)) == rule
    assert min(took) < STEPS  # else nobody leaves early
    for i, (at, _) in enumerate(rule):
        torch.testing.assert_close(best.loss[i], all_losses[due.index(at), i])
    # Nobody who left would have been chosen otherwise before the number of steps had grown by `PATIENCE`.
    for i, (at, left) in enumerate(rule):
        compared = [value for done, value in zip(due, judged[:, i], strict=True) if at < done <= left]
        assert all(value >= judged[due.index(at), i] - 1e-12 for value in compared)
        assert left == STEPS or len(compared) >= 3


def test_gradients_do_not_come_from_the_bank(problem):
    images, anchor, parts, select = problem
    own = [step.delta for step in attack(images, anchor, **parts)]
    for step, _ in watch(images, anchor, select=replace(select, early=False), **parts):
        assert torch.equal(step.delta, own[step.index])


def test_without_coordinates_the_bank_is_one_view(problem):
    images, anchor, parts, _ = problem
    select = choice(images, anchor, parts | {"eot": EOT(Compose(), views=4)})
    assert select.bank.u.shape == (1, 0)
    *_, (_, best) = watch(images, anchor, select=replace(select, early=True), **parts)
    direct = parts["objective"](parts["encoder"](images + best.delta), anchor)
    torch.testing.assert_close(best.loss, direct)


def test_an_adversary_sets_the_risk_of_the_choice(problem):
    images, anchor, parts, _ = problem
    adversary = Adversary(8, 1)
    select = choice(images, anchor, parts | {"eot": EOT(VIEWS, Uniform(), views=2), "adversary": adversary})
    assert select.risk == adversary.risk(2)


def test_restarts_are_refused_with_early_stopping(problem):
    images, anchor, parts, select = problem
    assert isinstance(select, Selection)
    with pytest.raises(ValueError, match="`restarts` must be 1"):
        next(watch(images, anchor, select=select, restarts=2, **parts))
