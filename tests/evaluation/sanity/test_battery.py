"""Short runs of an attack, the whole battery of checks, and encoders that answer anything at all."""

import math

import pytest
import torch
from torch import nn

from attacks import EOT, L2, NES, PGD, Away, Linf, Toward, Universal, attack
from attacks.encoders.passes import CountedCalls, PassCount
from attacks.eot.problem import Problem
from attacks.evaluation.sanity import battery, questions, table
from attacks.evaluation.sanity.battery import LASTS
from attacks.evaluation.sanity.differences import REPEAT_ERROR, REPEATS, repeats
from attacks.evaluation.sanity.questions import SELF_COSINE, SMOOTH_GRADIENT, self_cosine, transfer
from attacks.evaluation.sanity.short_attack import CANDIDATES, JUDGES, ShortAttack, redrawn
from attacks.optimisers import LabelOnly
from attacks.optimisers.gradient import Adam
from tests.helpers.sampling import mostly_slow
from tests.helpers.small import small, smooth
from tests.helpers.solving import examine, trial
from tests.solvers.test_label_only import options
from tests.solvers.test_label_only import problem as decision_problem
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


@pytest.mark.parametrize("perturbation", [Linf(0.1), Universal(Linf(0.1))], ids=["linf", "universal"])
def test_a_trial_equals_the_attack_and_keeps_the_best_of_its_candidates(perturbation, images):
    # Steps so long that the last iterate is seldom the best.
    setup = parts(perturbation=perturbation, optimiser=PGD(2.0, 0.0, "constant"), eot=EOT(VIEWS, views=1))
    anchor = setup["encoder"](images)
    steps = list(attack(images, anchor, **setup, seed=4))
    test = trial(images, anchor, setup | {"seed": 4}, PassCount())
    result = test.run()
    assert torch.equal(result.start[0], perturbation.start(images, torch.Generator().manual_seed(stream(4, "start"))))
    assert torch.equal(result.start[1], steps[0].estimate.grad)
    assert torch.equal(result.end[0], steps[-2].delta)
    assert torch.equal(result.end[1], steps[-1].estimate.grad)
    candidates = [steps[round(share * 11)].delta for share in CANDIDATES]
    files = [(images + candidate).clamp(0, 1) for candidate in candidates]
    losses = torch.stack([test.choosers.losses(x, anchor, setup["encoder"], Away(), 8).mean(1) for x in files])
    losses = losses.mean(1, keepdim=True) if perturbation.shared else losses
    assert torch.equal(result.delta, torch.stack([candidates[at][i] for i, at in enumerate(losses.argmin(0))]))
    assert result.losses.shape == (2, JUDGES)


def test_a_tally_counts_every_pass(images):
    setup, counter = parts(steps=5), PassCount()
    anchor = setup["encoder"](images)
    test = trial(images, anchor, setup | {"encoder": CountedCalls(setup["encoder"], counter)}, counter)
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


def test_arguments_of_examine_are_checked(images):
    for name in ("views", "steps", "planned"):
        with pytest.raises(ValueError, match=f"`{name}` must .*at least 1; got 0"):
            examine(images, small()(images), **parts() | {name: 0})


def decision_checks(share, optimiser):
    """The checks of an attack on an encoder that says same or not, and no more."""
    trace = [1, 1, 0.5, 0.5, 0.0, 0.0]
    case = decision_problem(share, count=2), options(optimiser=optimiser, steps=20)
    sanity = battery.examine(*case, views=20, trace=trace)
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


def problem(encoder, objective=Away(), anchor=None):  # noqa: B008
    images = smooth()
    return Problem(images, encoder(images) if anchor is None else anchor, encoder, objective, Linf(0.1))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-3, 1.0, 1e12, 1e30])
def test_an_embedding_without_a_length_in_float32_fails(scale):
    encoder = small()
    check = self_cosine(problem(lambda images: scale * encoder(images)))
    assert check.verdict == ("passed" if 1e-3 <= scale <= 1e12 else "failed"), check


def test_the_anchor_of_another_encoder_fails_and_a_target_is_no_anchor():
    encoder, images = small(), smooth()
    opposite = -encoder(images)
    assert self_cosine(problem(encoder)).figures["anchor"] == pytest.approx(1)
    assert self_cosine(problem(encoder, anchor=opposite)).verdict == "failed"
    assert self_cosine(problem(encoder, Toward(), opposite)).verdict == "passed"


@pytest.mark.parametrize("share", [0.0, 0.1 * REPEAT_ERROR, 10 * REPEAT_ERROR])
def test_an_answer_that_changes_is_named_and_held_still(share):
    encoder, images = small(), smooth()

    def answer(pictures):
        features = encoder(pictures)
        return features + share * features.norm() / features.numel() ** 0.5 * torch.randn_like(features)

    check, repeatable = repeats(answer, images, {})
    assert check.name == REPEATS and check.verdict == ("failed" if share > REPEAT_ERROR else "passed")
    assert share <= REPEAT_ERROR or torch.equal(repeatable(images), repeatable(images))


def test_an_answer_that_nothing_holds_still_is_not_compared():
    encoder, calls = small(), iter(range(100))
    check, repeatable = repeats(lambda pictures: (1 + next(calls)) * encoder(pictures), smooth(), {})
    assert check.verdict == "failed" and repeatable is None


class Saturating(nn.Module):
    """The gradient ends at the border of a small ball round the start."""

    def forward(self, images):
        return torch.cat([images.flatten(1).clamp(0.3, 0.7), torch.ones(len(images), 1)], 1)


HOSTILE = {
    "an index": lambda x: x.flatten(1).argmax(1, keepdim=True),
    "one number": lambda x: x.flatten(1).sum(1),
    "not a number": lambda x: x.flatten(1) / 0,
    "zero": lambda x: 0 * x.flatten(1),
    "changing shape": lambda x: x.flatten(1)[:, : 5 + int(torch.randint(0, 3, ()))],
    "no graph": lambda x: x.flatten(1).detach(),
    "softmax of large logits": lambda x: (1e5 * x.flatten(1)).softmax(1),
    "a sum over the batch": lambda x: x.flatten(1) + x.sum(),
    "another dtype": lambda x: x.flatten(1).double(),
    "one row": lambda x: x.flatten(1)[:1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoder", mostly_slow(HOSTILE.values(), 3), ids=HOSTILE)
def test_no_encoder_ends_the_examination(encoder):
    images = smooth()
    anchor = small()(images) if encoder is HOSTILE["one row"] else encoder(images)
    setup = parts(encoder=encoder, eot=EOT(Compose([Affine(degrees=9)]), views=2), steps=2)
    sanity = examine(images, anchor, **setup)
    assert sanity.failed, table(sanity)
    assert sorted(check.name for check in sanity.checks) == sorted(battery.NAMES)
    if encoder is HOSTILE["no graph"]:
        assert {"lowers the loss", "finite differences", "masking"} <= {check.name for check in sanity.failed}
        assert "exactly zero" in sanity.checks[0].message


def test_an_attack_through_a_defence_must_not_be_weaker_than_one_on_the_bare_encoder():
    images, setup = smooth(), parts(encoder=small(), eot=EOT(Compose([Affine(degrees=9)]), views=2))
    test = trial(images, small()(images), setup, PassCount())
    strong, none = test.run().delta, torch.zeros_like(images)
    pairs = {"passed": [(strong, none), (strong, strong), (none, none)], "failed": [(none, strong)]}
    for verdict, cases in pairs.items():
        assert {questions.through_defence(test, *case).verdict for case in cases} == {verdict}
    assert questions.THROUGH_DEFENCE in battery.MASKING


def test_a_gradient_that_ends_on_the_way_is_a_failed_check():
    images = 0.35 + 0.3 * smooth()
    setup = parts(encoder=Saturating().eval(), perturbation=Linf(0.5), optimiser=PGD(1.0), steps=20)
    sanity = examine(images, Saturating()(images), **setup | {"eot": EOT(Compose(), views=1)})
    (check,) = [check for check in sanity.checks if check.name == LASTS]
    assert check.verdict == "failed" and "exactly zero" in check.message, table(sanity)
    assert {check.name for check in sanity.checks} >= {SELF_COSINE, REPEATS, SMOOTH_GRADIENT}
