"""Several runs from different seeds, compared on one bank."""

import itertools

import pytest
import torch

from attacks import EOT, PGD, Linf, Toward, Universal, attack, solve
from attacks.optimisers.square import Square
from attacks.perturbations import Masked
from attacks.solvers.selection import NOISE, selection
from tests.helpers.solving import VIEWS, small_problem, split, watch
from transforms.draws import Uniform, stream

RUNS = {"pgd": PGD(1.0, 0.0, "constant"), "square": Square()}
SETS = {"own": Linf(0.1), "shared": Universal(Linf(0.1))}


@pytest.fixture
def problem():
    images, anchor, parts = small_problem(4, torch.float32)
    return images, anchor, parts | {"steps": 10, "eot": EOT(VIEWS, Uniform(), views=2, chunk=64)}


@pytest.fixture(params=itertools.product(RUNS, SETS), ids=" ".join)
def case(problem, request):
    """A problem with its optimiser and a set."""
    images, anchor, parts = problem
    optimiser, perturbation = RUNS[request.param[0]], SETS[request.param[1]]
    return images, anchor, parts | {"optimiser": optimiser, "perturbation": perturbation}


@pytest.mark.slow
def test_the_best_is_the_minimum_over_separate_runs(case):
    images, anchor, parts = case
    select, shared = selection(*split(images, anchor, **parts)), parts["perturbation"].shared
    plan = select.plan
    assert plan.looks in {(), (0.5,)} and plan.full == plan.screen  # few gradients: the half and the end
    views, at = select.bank._replace(u=select.bank.u[: plan.screen]), [4, 9] if plan.looks else [9]
    seeds = [parts["seed"], *(stream(parts["seed"], "restart", i) for i in (1, 2))]
    runs = [list(attack(images, anchor, **parts | {"seed": seed})) for seed in seeds]
    results = []
    for restart, steps in enumerate(runs):
        scenes = [parts["perturbation"].scene(images, steps[i].delta) for i in at]
        tables = torch.stack([views.losses(scene, anchor, parts["encoder"], Toward(), 64) for scene in scenes])
        table = tables.mean(1, keepdim=True).expand_as(tables) if shared else tables
        gap = table[-1] - table[0]
        better = gap.mean(1) > NOISE * gap.std(1) / plan.screen**0.5 if plan.screen > 1 else gap[:, 0] > 0
        choice = torch.where(better, 0, len(at) - 1)
        results.append((restart, choice, tables.mean(2).gather(0, choice[None])[0]))
    losses = torch.stack([loss for *_, loss in results])
    first = losses.mean(1).argmin().expand(4) if shared else losses.argmin(0)
    best = solve(images, anchor, restarts=3, **parts)
    torch.testing.assert_close(best.loss, losses.gather(0, first[None])[0])
    for i, number in enumerate(first.tolist()):
        step = at[int(results[number][1][i])]
        row = 0 if shared else i
        assert int(best.step[i]) == 10 * number + step
        assert torch.equal(best.delta[row], runs[number][step].delta[row])
    assert (best.step < 30).all()
    assert (best.step >= 10).any()  # later runs improve some pictures


@pytest.mark.slow
def test_one_run_equals_the_attack(case):
    images, anchor, parts = case
    expected = list(attack(images, anchor, **parts))
    result = [step for step, _ in watch(images, anchor, restarts=1, **parts)]
    first = [step for step, _ in watch(images, anchor, restarts=2, **parts)][:10]
    for ours in (result, first):
        assert len(ours) == len(expected)
        for a, b in zip(ours, expected, strict=True):
            assert (a.index, a.evals) == (b.index, b.evals)
            assert torch.equal(a.delta, b.delta)
            assert torch.equal(a.estimate.mean, b.estimate.mean)


@pytest.mark.slow
def test_steps_and_passes_are_counted_across_runs(case):
    images, anchor, parts = case
    steps = [step for step, _ in watch(images, anchor, restarts=3, **parts)]
    assert [step.index for step in steps] == list(range(30))
    assert [step.evals for step in steps] == [8 * (i + 1) for i in range(30)]
    assert [step.last for step in steps] == [False] * 29 + [True]
    assert not torch.equal(steps[10].delta, steps[0].delta)  # each run has its own start


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", RUNS.values(), ids=RUNS)
def test_solved_pictures_are_excluded_from_later_runs(problem, optimiser):
    images, anchor, parts = problem
    parts |= {"optimiser": optimiser}
    first = solve(images, anchor, **parts).loss
    stop = float(first.sort().values[1:3].mean())  # two are solved in the first run
    stops = first <= stop
    assert stops.tolist().count(True) == 2
    *start, (end, best) = list(watch(images, anchor, restarts=3, stop=stop, **parts))
    reruns = [(step, result) for step, result in [*start, (end, best)] if step.index >= 10]
    assert reruns
    for step, result in reruns:
        assert not (step.active & stops).any()
        assert torch.equal(step.delta[stops], result.delta[stops])
        assert step.estimate.mean.shape == (4,)
        assert step.delta.shape == images.shape
    assert (best.loss[stops] <= stop).all()
    costs = [b.evals - a.evals for (a, _), (b, _) in itertools.pairwise(reruns)]
    assert costs == [2 * int(step.active.sum()) for step, _ in reruns[1:]]


def test_runs_end_when_all_pictures_are_solved(problem):
    images, anchor, parts = problem
    steps = [step for step, _ in watch(images, anchor, restarts=5, stop=2.0, **parts)]
    assert len(steps) == 5


def test_each_run_has_the_full_budget_of_its_pictures(problem):
    images, anchor, parts = problem
    parts |= {"budget": torch.tensor([4, 8, 12, 20])}
    steps = [step for step, _ in watch(images, anchor, restarts=2, **parts)]
    assert steps[-1].evals == 88
    assert torch.stack([step.active for step in steps]).sum(0).tolist() == [4, 8, 12, 20]


def test_perturbation_may_hold_data_per_picture(problem):
    images, anchor, parts = problem

    mask = (torch.rand(4, 1, 12, 14, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    parts |= {"perturbation": Masked(Linf(0.1), mask), "eot": EOT(views=1)}
    first = solve(images, anchor, **parts).loss
    stop = float(first.sort().values[1:3].mean())
    best = solve(images, anchor, restarts=3, stop=stop, **parts)
    assert not (best.delta * (1 - mask)).any()
    assert (best.loss <= first.clamp(min=stop)).all()
    assert (best.step >= 10).any()


@pytest.mark.parametrize("restarts", [0, -1, 1.5, True])
def test_the_number_of_runs_must_be_an_integer(problem, restarts):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`restarts` must be a whole number"):
        solve(images, anchor, restarts=restarts, **parts)


def test_a_later_run_of_a_picture_does_not_depend_on_whether_its_neighbour_is_left(problem):
    images, anchor, parts = problem
    losses = solve(images, anchor, **parts).loss
    easy, _, worst, hard = losses.argsort().tolist()
    stop, ends = float(losses.sort().values[1:3].mean()), []
    for other in (easy, hard):
        *_, (step, best) = watch(images[[other, worst]], anchor[[other, worst]], restarts=2, stop=stop, **parts)
        ends.append((step, best))
    assert [step.active.tolist() for step, _ in ends] == [[False, True], [True, True]]
    assert torch.equal(ends[0][0].delta[1], ends[1][0].delta[1])
    assert all(torch.equal(result[1], other[1]) for result, other in zip(ends[0][1], ends[1][1], strict=True))


def test_the_latest_loss_of_a_solved_picture_is_that_of_its_last_look(problem):
    images, anchor, parts = problem
    losses = solve(images, anchor, **parts).loss
    stop, row = float(losses.sort().values[1:3].mean()), losses.argmin()
    results = [(step.index, best) for step, best in watch(images, anchor, restarts=3, stop=stop, **parts) if best]
    first = [best for index, best in results if index < parts["steps"]][-1]
    assert results[-1][0] > first.step.max()
    assert results[-1][1].latest.isfinite().all()
    assert results[-1][1].latest[row] == first.latest[row]
