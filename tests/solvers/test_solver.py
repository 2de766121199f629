"""The best iterate, chosen on views that are common to all candidates."""

import pytest
import torch

from attacks import EOT, L2, PGD, Linf, attack, bank, solve
from attacks.optimisers.square import Square
from attacks.solvers.solver import COMPARISONS
from attacks.solvers.solver import VIEWS as COUNT
from tests.helpers.solving import VIEWS, search, small_problem, watch
from transforms import Compose, Uniform

IDENTITY = Compose()


@pytest.fixture
def problem():
    """Two pictures, their anchors, and an attack so coarse that its later iterates are worse than earlier ones."""
    images, anchor, parts = small_problem(2, torch.float32)
    optimiser = PGD(1.0, 0.0, "constant")
    return images, anchor, parts | {"optimiser": optimiser, "eot": EOT(VIEWS, Uniform(), views=1), "steps": 30}


def losses(images, anchor, parts, delta, transforms=VIEWS):
    """On the solver's own views."""
    views = bank(transforms, COUNT if transforms.dims else 1, seed=parts["seed"], purpose="select")
    return views.losses(images + delta, anchor, parts["encoder"], parts["objective"], chunk=7).mean(1)


@pytest.mark.parametrize(
    ("run", "optimiser", "transforms"),
    [
        (attack, PGD(1.0, 0.0, "constant"), VIEWS),
        (attack, PGD(1.0, 0.0, "constant"), IDENTITY),
        (search, Square(), VIEWS),
    ],
    ids=["views", "identity", "search"],
)
def test_best_is_chosen_among_the_candidates_per_picture(problem, run, optimiser, transforms):
    images, anchor, parts = problem
    parts |= {"optimiser": optimiser, "eot": EOT(transforms, Uniform(), views=1)}
    every = parts["steps"] // COMPARISONS
    deltas = [step.delta for step in run(images, anchor, **parts) if (step.index + 1) % every == 0]
    scores = torch.stack([losses(images, anchor, parts, delta, transforms) for delta in deltas])
    best = solve(images, anchor, **parts)
    torch.testing.assert_close(best.loss, scores.amin(0))
    assert (best.loss < scores[-1]).any()  # else the last iterate would be the best
    assert torch.equal(best.step, (scores.argmin(0) + 1) * every - 1)
    for row, which in enumerate(scores.argmin(0)):
        assert torch.equal(best.delta[row], deltas[which][row])


def test_solve_returns_the_last_best_of_watch_which_only_improves(problem):
    images, anchor, parts = problem
    results = [best for _, best in watch(images, anchor, **parts) if best is not None]
    assert (torch.stack([best.loss for best in results]).diff(dim=0) <= 0).all()
    for result, expected in zip(solve(images, anchor, **parts), results[-1], strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("steps", [1, 3, 11, 25])
def test_the_last_step_is_always_compared(problem, steps):
    images, anchor, parts = problem
    *_, (step, best) = watch(images, anchor, **parts | {"steps": steps})
    assert step.index == steps - 1
    torch.testing.assert_close(best.latest, losses(images, anchor, parts, step.delta))


@pytest.mark.parametrize("perturbation", [Linf(0.1), L2(1.0)])
@pytest.mark.parametrize("restarts", [1, 3])
def test_best_is_feasible(problem, perturbation, restarts):
    images, anchor, parts = problem
    best = solve(images, anchor, restarts=restarts, **parts | {"perturbation": perturbation})
    assert (perturbation.norm(best.delta) <= perturbation.eps * (1 + 1e-6)).all()
    assert 0 <= (images + best.delta).min() <= (images + best.delta).max() <= 1


def test_result_does_not_depend_on_the_other_pictures(problem):
    images, anchor, parts = problem
    parts["perturbation"] = Linf(0.1, random_start=False)
    together = solve(images.double(), anchor.double(), **parts | {"encoder": parts["encoder"].double()})
    for i in range(2):
        alone = solve(images[[i]].double(), anchor[[i]].double(), **parts)
        torch.testing.assert_close(alone.delta, together.delta[[i]], rtol=0, atol=1e-12)
        assert alone.step == together.step[i]
