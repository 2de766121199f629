"""The error of an exactly zero gradient has the result of the audit."""

from dataclasses import dataclass

import pytest

from attacks import Linf
from attacks.eot.protocols import Objective
from tests.helpers.faulty import Head, run_attack
from transforms import Affine, Brightness
from transforms.scene import scene_of


@dataclass(frozen=True)
class Cut:
    label = "cut"
    dims = 0
    names = ()

    def values(self, u):
        return u

    def __call__(self, images, u):
        return images.detach()


class GraphCut(Objective):
    def __call__(self, features, anchor):
        return (features * 0).sum(1)


class Outside(Linf):
    """No view shows the delta."""

    def scene(self, images, delta):
        return scene_of(images + 0 * delta)


@pytest.mark.parametrize(
    ("message", "setup"),
    [
        ("dies in the stage cut", {"stages": [Affine(degrees=20), Cut(), Brightness(0.1)]}),
        ("no view shows what may be changed", {"perturbation": Outside(0.1)}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("and the encoder cuts it", {"encoder": Head(lambda features, _: features.detach())}),
                ("the loss is at its end", {"objective": GraphCut()}),
            )
        ),
    ],
)
def test_the_error_of_a_zero_gradient_has_the_audit_result(message, setup):
    with pytest.raises(ValueError, match=message):
        run_attack(**{"stages": [Affine(degrees=20)]} | setup)


@pytest.mark.slow
def test_a_gradient_that_becomes_zero_in_a_later_step_is_reported():
    calls = []

    def loss(features, _):
        calls.extend([1] * features.requires_grad)
        return features if len(calls) < 8 else features.detach()

    with pytest.warns(UserWarning, match=r"exactly zero for 5 steps \(step \d+\).*the encoder cuts it"):
        run_attack(encoder=Head(loss), stages=[Affine(degrees=20)], steps=20)
