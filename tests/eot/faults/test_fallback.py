"""A lower precision that overflows falls back to float32, and a resumed attack uses the saved engine state."""

from functools import partial

import pytest
import torch
from torch import nn

from attacks import Away, Ensemble
from attacks.encoders.engine import Decision, engine_reset, engine_restore, engine_state, prepare
from attacks.encoders.passes import CountedCalls
from attacks.eot.bank import bank
from attacks.eot.faults import NotFinite
from attacks.objectives import Members
from tests.helpers.faulty import attack_steps, net, pictures, run_attack
from transforms import Affine, Compose


class Touchy(nn.Module):
    """Divides by a value that is 0 in bfloat16 but not in float32; with `fails`, by 0 in both."""

    def __init__(self, fails=False):
        super().__init__()
        self.net, self.line, self.training = net(), nn.Linear(1, 1, bias=False), False
        self.line.weight.data.fill_(1.0)
        self.share = 0.0 if fails else 2.0**-10
        self.requires_grad_(False)

    def forward(self, images):
        features = self.net(images)
        factor = 1 + self.share + 0 * features[:, :1].float()
        return features.float() / (self.line(factor).float() - 1)


def run(encoder, **options):
    return list(attack_steps(encoder=encoder, stages=[Affine(degrees=20)], n=4, **options))


def test_overflow_falls_back_to_float32_with_one_warning():
    touchy = Touchy()
    low = CountedCalls(prepare(touchy, Decision(precision="bfloat16")))
    with pytest.warns(UserWarning, match=r"`engine.precision=bfloat16` gives a loss or a gradient") as log:
        steps = run(low)
        run(low)
    assert len([warning for warning in log if "engine.precision" in str(warning.message)]) == 1
    assert engine_state(low)["fell_back"] is True
    for step, exact in zip(steps, run(touchy), strict=True):
        assert torch.equal(step.delta, exact.delta)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`engine.precision")
def test_all_members_of_an_ensemble_fall_back_at_once():
    objective = Members(Away(), combine="gradients")
    for first in (net(), Touchy()):
        ensemble = Ensemble([first, Touchy()])
        low = prepare(ensemble, Decision(precision="bfloat16"))
        for step, exact in zip(run(low, objective=objective), run(ensemble, objective=objective), strict=True):
            assert torch.equal(step.delta, exact.delta)
        assert engine_state(low)["fell_back"] is True


def test_without_a_finite_float32_result_there_is_no_fallback():
    low = prepare(Touchy(fails=True), Decision(precision="bfloat16"))
    with pytest.raises(NotFinite, match="at the encoder"):
        run_attack(encoder=low)
    assert engine_state(low)["fell_back"] is False


@pytest.mark.filterwarnings("ignore:`engine.precision")
def test_evaluation_on_a_bank_falls_back():
    touchy = Touchy()
    low = prepare(touchy, Decision(precision="bfloat16"))
    images, views = pictures(), bank(Compose([Affine(degrees=20)]), 8, seed=0, purpose="select")
    anchor = net()(images)
    losses = views.losses(images, anchor, low, Away(), 3)
    assert torch.equal(losses, views.losses(images, anchor, touchy, Away(), 3))


@pytest.mark.filterwarnings("ignore:`engine.precision")
def test_a_resumed_attack_with_the_engine_state_is_bit_identical():
    touchy = Touchy()
    first = prepare(touchy, Decision(precision="bfloat16"))
    all_steps, at = [], None
    for step in attack_steps(encoder=first, stages=[Affine(degrees=20)], n=4):
        all_steps.append(step)
        if step.index == 2:
            at, state = step.state, engine_state(first)
    second = CountedCalls(prepare(touchy, Decision(precision="bfloat16")))
    engine_restore(second, state)
    rest = run(second, state=at)
    for expected, step in zip(all_steps[3:], rest, strict=True):
        assert torch.equal(expected.delta, step.delta)
    assert engine_state(second) == engine_state(first)


def test_engine_state_is_read_and_restored_through_wrappers():
    plain = CountedCalls(net())
    assert engine_state(plain) == {}
    engine_restore(plain, {})
    engine_reset(plain)
    low = prepare(net(), Decision(precision="bfloat16"))
    low_state = engine_state(low)
    engine_restore(low, {"fell_back": True})
    for wrapper in (CountedCalls(CountedCalls(low)), partial(low, only=1)):
        assert engine_state(wrapper) == {"fell_back": True}
    engine_reset(low)
    assert engine_state(low) == low_state
    with pytest.raises(ValueError, match="belongs to another decision"):
        engine_restore(plain, low_state)
    with pytest.raises(ValueError, match="belongs to another decision"):
        engine_restore(low, {})
