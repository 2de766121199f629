"""Zero gradients: the error has the result of the audit; of ensemble members, penalties and a saturated loss."""

from dataclasses import dataclass

import pytest

from attacks import EOT, Away, CVaR, Linf, Toward
from attacks.data.gallery import tiles
from attacks.eot.protocols import Objective
from attacks.objectives.composite import Ensemble, Members
from tests.helpers.faulty import Head, run_attack
from tests.objectives.test_ensemble import VIEWS, Small, final
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


@pytest.fixture
def images():
    return tiles(96).spread(3).images[..., :20, :24].contiguous()


class Blind(Small):
    """An encoder whose gradient is cut, or zero."""

    def __init__(self, cut):
        super().__init__(1)
        self.cut = cut

    def forward(self, images):
        return super().forward(images.detach() if self.cut else images.detach() + 0 * images)


@pytest.mark.parametrize(
    ("combine", "cut", "message"),
    [("losses", True, "encoder 1.*cuts the graph"), ("gradients", False, "encoder 1.*exactly zero")],
)
def test_an_ensemble_member_without_a_gradient_is_refused(images, combine, cut, message):
    ensemble = Ensemble([Small(0), Blind(cut)])
    with pytest.raises(ValueError, match=message):
        final(images, ensemble(images), encoder=ensemble, objective=Members(Away(), combine))


def test_cvar_with_separate_member_gradients_is_refused(images):
    ensemble = Ensemble([Small(0), Small(1)])
    with pytest.raises(ValueError, match="CVaR weighs views"):
        eot = EOT(VIEWS, views=4, risk=CVaR(0.5))
        final(images, ensemble(images), encoder=ensemble, objective=Members(Away(), "gradients"), eot=eot)


def test_a_penalty_without_a_finite_gradient_is_refused(images):
    def root(delta, pictures, originals):  # its slope at delta 0 is infinite
        return (pictures - originals).diff(dim=3).abs().sqrt().mean((1, 2, 3))

    net, linf = Small(0), Linf(8 / 255, random_start=False)
    with pytest.raises(FloatingPointError, match="step 0: the gradient of the penalty"):
        final(images, net(images).roll(1, 1), encoder=net, objective=Toward(), perturbation=linf, penalty=root)


@pytest.mark.parametrize(
    "price", [lambda delta, *_: delta.detach(), lambda _, __, images: images], ids=["cut", "other"]
)
def test_a_penalty_without_a_gradient_is_refused(images, price):
    def constant(*inputs):
        return price(*inputs).mean((1, 2, 3))

    net = Small(0)
    with pytest.raises(ValueError, match="the penalty has no gradient"):
        final(images, net(images).roll(1, 1), encoder=net, objective=Toward(), penalty=constant)
