"""A weak attack makes any encoder look robust: no policy passes on one, however low its bars."""

import pytest
import torch

from attacks import load_encoder, robustness
from scripts.benchmarks.zoo_encoders import with_gradient

POLICY = """claim: Anything passes this, if the attack is checked.
date: 2026-11-24
requirements:
  - {measure: success, arm: eot, at_most: 0.99}
"""
FAST = {"evaluate.views": 16, "data.size": 64}


class Wrapper(torch.nn.Module):
    """The pocket encoder behind a change of its input or of its gradient."""

    def __init__(self, change):
        super().__init__()
        self.encoder, self.change = load_encoder("pocket"), change

    def forward(self, images):
        return self.encoder(self.change(images))


def ripple(x):
    return x + 0.03 * (400 * x).sin()


WEAK = {
    "one step": (lambda x: x, {"attack.gradients": 1}),
    "ascent": (with_gradient(lambda grad: -grad), {}),
    "almost no gradient": (with_gradient(lambda grad: torch.where(grad.abs() < grad.abs().max(), 0.0, grad)), {}),
    "masked": (ripple, {}),
}


def verdict(change, values, seed, folder):
    (folder / "policy.yaml").write_text(POLICY)
    values = FAST | values | {"seed": seed, "require": str(folder / "policy.yaml")}
    encoder = Wrapper(change).eval()
    return robustness(encoder, preset="quickstart", out=folder / "run", **values).metrics["gate"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("seed", range(10))
def test_no_weakened_attack_passes(tmp_path, name, seed):
    change, values = WEAK[name]
    gate = verdict(change, values, seed, tmp_path)
    assert gate["verdict"] == "UNDECIDED" and gate["reasons"], gate


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_a_working_attack_is_decided(tmp_path, seed):
    assert verdict(lambda x: x, {}, seed, tmp_path)["verdict"] == "PASS"


def test_the_weakened_encoders_give_the_same_answers():
    images, encoder = torch.rand(2, 3, 32, 32), load_encoder("pocket")
    for name in ("ascent", "almost no gradient"):
        assert torch.equal(Wrapper(WEAK[name][0]).eval()(images), encoder(images)), name
