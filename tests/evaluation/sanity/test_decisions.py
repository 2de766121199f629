"""The checks of an attack on an encoder that says same or not, and no more."""

import pytest

from attacks import NES
from attacks.evaluation.sanity.battery import examine
from attacks.optimisers import LabelOnly
from tests.solvers.test_label_only import options, problem


def verdicts(share, optimiser, steps=20):
    case = problem(share, count=2)
    sanity = examine(case, options(optimiser=optimiser, steps=steps), views=20, trace=[1, 1, 0.5, 0.5, 0.0, 0.0])
    return {check.name: check for check in sanity.checks}


@pytest.mark.slow
@pytest.mark.parametrize(("share", "verdict"), [(0.8, "passed"), (2.0, "skipped"), (9.0, "failed")])
def test_answers_that_change_only_at_a_larger_radius_are_no_failure(share, verdict):
    checks = verdicts(share, LabelOnly(keep=4))
    assert checks["lowers the loss"].verdict == verdict
    assert (checks["masking"].verdict == "failed") == (verdict == "failed")
    assert checks["plateau"].verdict == "skipped" and "same or not" in checks["plateau"].message
    assert checks["grows with the radius"].verdict == ("failed" if verdict == "failed" else "passed")


@pytest.mark.slow
def test_an_attack_that_sees_a_flat_loss_fails_though_a_larger_radius_helps():
    checks = verdicts(0.8, NES(keep=4))
    assert checks["lowers the loss"].verdict == "failed"
