"""The best iterate, chosen on views that are common to all candidates."""

import pytest
import torch

from attacks import EOT, NES, PGD, attack, solve
from attacks.optimisers import LabelOnly
from attacks.optimisers.square import Square
from tests.helpers.solving import VIEWS, look_risk, small_problem, watch
from transforms.draws import Uniform


@pytest.fixture
def problem():
    """Two pictures, their anchors, and an attack so coarse that its later iterates are worse than earlier ones."""
    images, anchor, parts = small_problem(2, torch.float32)
    optimiser = PGD(1.0, 0.0, "constant")
    return images, anchor, parts | {"optimiser": optimiser, "eot": EOT(VIEWS, Uniform(), views=1), "steps": 30}


def test_solve_returns_the_last_best_of_watch(problem):
    images, anchor, parts = problem
    results = [best for _, best in watch(images, anchor, **parts) if best is not None]
    for result, expected in zip(solve(images, anchor, **parts), results[-1], strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("steps", [1, 3, 11, 25])
def test_the_last_step_is_always_looked_at(problem, steps):
    images, anchor, parts = problem
    parts |= {"steps": steps}
    *_, (step, best) = watch(images, anchor, **parts)
    assert step.index == steps - 1
    torch.testing.assert_close(best.latest, look_risk(images, anchor, step.delta, **parts).float())


@pytest.mark.parametrize("optimiser", [PGD(), Square(), NES(), LabelOnly()], ids=lambda value: type(value).__name__)
def test_no_picture_is_an_error(problem, optimiser):
    images, anchor, parts = problem
    parts |= {"optimiser": optimiser, "eot": EOT(VIEWS, views=2)}
    with pytest.raises(ValueError, match="`images` must hold at least one image"):
        solve(images[:0], anchor[:0], **parts)
    with pytest.raises(ValueError, match="`images` must hold at least one image"):
        next(attack(images[:0], anchor[:0], **parts | {"optimiser": PGD()}))
