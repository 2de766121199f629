"""Short runs of an attack, and the whole battery of checks."""

import math

import pytest
import torch
from torch import nn

from attacks import EOT, L2, NES, PGD, Away, Linf, Toward, Universal, attack
from attacks.evaluation.sanity import battery, table
from attacks.evaluation.sanity.questions import transfer
from attacks.evaluation.sanity.short_attack import CANDIDATES, JUDGES, PassCount, ShortAttack, redrawn
from attacks.optimisers import LabelOnly
from attacks.optimisers.gradient import Adam
from tests.helpers.small import SETS, ids, small, smooth
from tests.helpers.solving import examine, trial
from tests.solvers.test_label_only import options, problem
from transforms import Affine, Brightness, Compose
from transforms.draws import stream

VIEWS = Compose([Affine(degrees=20, scale=(0.8, 1.2), translate=0.1), Brightness(0.1)])


def parts(**changes):
    encoder = small()
    result = {"encoder": encoder, "objective": Away(), "perturbation": Linf(0.1), "optimiser": PGD()}
    return result | {"eot": EOT(VIEWS, views=4), "steps": 12} | changes


@pytest.fixture
def images():
    return smooth()


def test_a_trial_equals_the_attack(images):
    setup = parts()
    anchor = setup["encoder"](images)
    steps = list(attack(images, anchor, **setup, seed=4))
    result = trial(images, anchor, setup | {"seed": 4}, PassCount()).run()
    assert torch.equal(result.start[0], Linf(0.1).start(images, torch.Generator().manual_seed(stream(4, "start"))))
    assert torch.equal(result.start[1], steps[0].estimate.grad)
    assert torch.equal(result.end[0], steps[-2].delta)
    assert torch.equal(result.end[1], steps[-1].estimate.grad)
    candidates = [steps[round(share * 11)].delta for share in CANDIDATES]
    for row, delta in enumerate(result.delta):
        assert any(torch.equal(delta, candidate[row]) for candidate in candidates)
    assert result.losses.shape == (2, JUDGES)


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", SETS, ids=ids)
def test_a_trial_keeps_the_best_of_its_candidates(perturbation, images):
    # Steps so long that the last iterate is seldom the best.
    setup = parts(perturbation=perturbation, optimiser=PGD(2.0, 0.0, "constant"), eot=EOT(VIEWS, views=1))
    anchor = setup["encoder"](images)
    test = trial(images, anchor, setup, PassCount())
    *_, end = attack(images, anchor, **setup)
    result = test.run()

    def choice_loss(delta):
        pixels = (images + delta).clamp(0, 1)
        table = test.choosers.losses(pixels, anchor, setup["encoder"], Away(), 8).mean(1)
        return table.mean() if perturbation.shared else table

    assert (choice_loss(result.delta) <= choice_loss(end.delta) + 1e-6).all()


def test_a_tally_counts_every_pass(images):
    setup, counter = parts(steps=5), PassCount()
    anchor = setup["encoder"](images)
    test = trial(images, anchor, setup | {"encoder": counter.count(setup["encoder"])}, counter)
    test.run()
    gradients = 2 * 5 * 4
    assert counter.backward == gradients
    assert counter.forward == gradients + 2 * (16 * len(CANDIDATES) + JUDGES)


@pytest.mark.parametrize("objective", [Away(), Toward()], ids=["away", "toward"])
def test_transfer_takes_the_anchor_of_the_other_encoder(objective, images, monkeypatch):
    setup, runs = parts(objective=objective, steps=3), []
    anchor = setup["encoder"](images)
    test = trial(images, anchor, setup, PassCount())
    main, run = test.run(), ShortAttack.run
    monkeypatch.setattr(ShortAttack, "run", lambda self, **changes: (runs.append(changes), run(self, **changes))[1])
    assert transfer(test, main, 0.1, setup["encoder"]).verdict in ("passed", "failed")
    (changes,) = runs
    expected = redrawn(setup["encoder"], 0)(images) if isinstance(objective, Away) else anchor
    assert torch.equal(changes["anchor"], expected)
    assert all(transfer(test, main, 0.1, module).verdict == "skipped" for module in (None, nn.Flatten()))


@pytest.mark.slow
@pytest.mark.parametrize("perturbation", [Linf(0.1), Universal(L2(1.0))], ids=["linf", "universal-l2"])
def test_a_correct_attack_passes(perturbation, images):
    setup = parts(perturbation=perturbation, steps=20)
    sanity = examine(images, setup["encoder"](images), **setup, trace=[math.exp(-i / 5) for i in range(50)])
    assert {check.verdict for check in sanity.checks} == {"passed"}, table(sanity)


@pytest.mark.slow
def test_short_steps_pass_if_the_planned_run_is_long(images):
    # Steps that cross the set in 100, not in 20.
    setup = parts(optimiser=Adam(0.05), steps=20)
    anchor = setup["encoder"](images)
    assert not examine(images, anchor, **setup, planned=100).failed
    assert examine(images, anchor, **setup, planned=20).failed


@pytest.mark.slow
def test_the_battery_depends_only_on_its_seed(images):
    setup = parts(steps=6)
    anchor = setup["encoder"](images)
    first, second, other = (examine(images, anchor, **setup, seed=seed).to_dict()["checks"] for seed in (1, 1, 2))
    assert first == second
    assert first != other


@pytest.mark.slow
def test_an_attack_that_cannot_run_is_a_failed_check_not_a_crash(images):
    working = examine(images, small()(images), **parts(steps=4))
    dead = parts(encoder=lambda x: x.flatten(1).detach().round(), steps=4)
    sanity = examine(images, dead["encoder"](images), **dead)
    assert [check.name for check in sanity.checks] == [check.name for check in working.checks]
    assert {"lowers the loss", "finite differences", "masking"} <= {check.name for check in sanity.failed}
    assert "exactly zero" in sanity.checks[0].message


def test_arguments_of_examine_are_checked(images):
    for name in ("views", "steps", "planned"):
        with pytest.raises(ValueError, match=f"`{name}` must .*at least 1; got 0"):
            examine(images, small()(images), **parts() | {name: 0})


def decision_checks(share, optimiser):
    """The checks of an attack on an encoder that says same or not, and no more."""
    trace = [1, 1, 0.5, 0.5, 0.0, 0.0]
    sanity = battery.examine(problem(share, count=2), options(optimiser=optimiser, steps=20), views=20, trace=trace)
    return {check.name: check for check in sanity.checks}


@pytest.mark.slow
@pytest.mark.parametrize(("share", "verdict"), [(0.8, "passed"), (2.0, "skipped"), (9.0, "failed")])
def test_answers_that_change_only_at_a_larger_radius_are_no_failure(share, verdict):
    checks = decision_checks(share, LabelOnly(keep=4))
    assert checks["lowers the loss"].verdict == verdict
    assert (checks["masking"].verdict == "failed") == (verdict == "failed")
    assert checks["plateau"].verdict == "skipped" and "same or not" in checks["plateau"].message
    assert checks["grows with the radius"].verdict == ("failed" if verdict == "failed" else "passed")


@pytest.mark.slow
def test_an_attack_that_sees_a_flat_loss_fails_though_a_larger_radius_helps():
    assert decision_checks(0.8, NES(keep=4))["lowers the loss"].verdict == "failed"
