"""Masks and grey perturbations: the deltas they allow, and that nothing else changes."""

import pytest
import torch

from attacks import EOT, PGD, SGD, Toward, Wiener, attack
from attacks.perturbations import L0, L1, L2, Grey, Linf, LowFrequency, Masked, Universal
from tests.helpers.sets import double, levels, random, seed
from tests.helpers.small import small
from transforms import Affine, Compose

SIZE = (12, 14)
BALLS = {"linf": Linf(0.1), "l2": L2(0.7), "l1": L1(5.0), "l0": L0(6)}
every_ball = pytest.mark.parametrize("inner", BALLS.values(), ids=BALLS)


def mask(rows=1, value=0):
    return (torch.rand(rows, 1, *SIZE, generator=seed(value)) < 0.3).float()


def pictures():
    return levels(3, 3, *SIZE)


@pytest.fixture
def net():
    return small(width=4, kernel=3, features=6, size=SIZE).to(double)


def run(net, perturbation, optimiser=None, steps=8, **parts):
    defaults = {"encoder": net, "objective": Toward(), "eot": EOT(Compose([Affine(degrees=20)]), views=4)}
    parts = {**defaults, "perturbation": perturbation, "optimiser": optimiser or PGD(), **parts}
    return [*attack(pictures(), random(3, 6, value=4), steps=steps, **parts)]


@every_ball
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("optimiser", [PGD(), SGD(10.0)], ids=["pgd", "sgd"])
def test_an_attack_stays_within_the_mask_and_lowers_the_loss(net, inner, rows, optimiser):
    masked = Masked(inner, mask(rows))
    steps = run(net, masked, optimiser)
    for step in steps:
        assert not (step.delta * (1 - mask(rows))).any()
        assert (masked.norm(step.delta) <= masked.eps * (1 + 1e-12)).all()
    assert steps[-1].estimate.mean.mean() < steps[0].estimate.mean.mean() - 1e-3


@every_ball
def test_the_projection_equals_that_of_the_masked_pixels(inner):
    # All masked pixels as one picture.
    images, delta = pictures(), 3 * random(3, 3, *SIZE, value=1)
    selection = mask()[0, 0].bool()
    result = Masked(inner, mask()).project(delta, images)
    separate = inner.project(delta[:, :, selection][:, :, None], images[:, :, selection][:, :, None])
    torch.testing.assert_close(result[:, :, selection][:, :, None], separate, rtol=0, atol=1e-14)


@every_ball
@pytest.mark.parametrize("wrap", [lambda b: b, Grey, lambda b: Masked(b, mask(value=9))], ids=["one", "grey", "two"])
def test_a_mask_for_all_and_the_same_mask_for_each_make_one_attack(net, inner, wrap):
    if wrap is Grey and isinstance(inner, L1):
        pytest.skip("refused")
    eot = EOT(Compose([Affine(degrees=20)]), views=4, chunk=6)  # a picture is in a pass several times
    masks = mask(), mask().expand(3, -1, -1, -1)
    single, three = (run(net, wrap(Masked(inner, m)), Wiener(), eot=eot)[-1] for m in masks)
    assert torch.equal(single.delta, three.delta) and torch.equal(single.estimate.snr, three.estimate.snr)
    assert torch.equal(single.estimate.grad, three.estimate.grad) and not (three.estimate.grad * (1 - mask())).any()


def test_a_mask_without_any_gradient_is_refused(net):
    corner = torch.zeros(1, 1, *SIZE)
    corner[..., -1, -1] = 1  # the convolution's stride never reaches it
    with pytest.raises(ValueError, match="exactly zero"):
        run(net, Masked(Linf(0.1), corner), eot=EOT(views=1))
    masks = torch.cat([torch.ones_like(corner), corner, torch.ones_like(corner)])
    with pytest.raises(ValueError, match=r"exactly zero for image\(s\) \[1\]"):
        run(net, Masked(Linf(0.1), masks), eot=EOT(views=1))


@every_ball
@pytest.mark.parametrize("wrap", [lambda b: Masked(b, mask()), Grey], ids=["masked", "grey"])
def test_a_universal_delta_may_be_inside_other_wrappers(net, inner, wrap):
    if wrap is Grey and isinstance(inner, L1):
        pytest.skip("refused")
    universal = Universal(wrap(inner))
    steps = run(net, universal)
    for step in steps:
        assert step.delta.shape == (1, 3, *SIZE)
        torch.testing.assert_close(universal.inner.restrict(step.delta), step.delta, rtol=0, atol=1e-14)
        assert (universal.norm(step.delta) <= inner.eps * (1 + 1e-12)).all()
    assert steps[-1].estimate.mean.mean() < steps[0].estimate.mean.mean() - 1e-3
    copy = universal.quantise(steps[-1].delta, pictures())
    assert (universal.norm(copy) <= inner.eps * (1 + 2e-5)).all()


def test_grey_projects_to_the_nearest_grey_point_of_the_box():
    images, delta = pictures(), random(3, 3, *SIZE, value=1)
    low = (-images).amax(1, keepdim=True).clamp(min=-0.1)
    high = (1 - images).amin(1, keepdim=True).clamp(max=0.1)
    target = delta.mean(1, keepdim=True).clamp(low, high).expand_as(delta)
    torch.testing.assert_close(Grey(Linf(0.1)).project(delta, images), target, rtol=0, atol=1e-15)


def test_moves_satisfy_every_restriction():
    images = torch.full((3, 3, *SIZE), 0.5, dtype=double)
    wild = random(3, 3, *SIZE, value=1) / 100
    band = LowFrequency(L2(5.0), 5)
    nested, shared = Grey(band), Universal(Grey(band))
    target = band.restrict(wild.mean(1, keepdim=True).expand_as(wild))
    assert (target - wild).abs().max() > 0.01
    torch.testing.assert_close(nested.move(wild, 0 * wild, images), target, rtol=0, atol=1e-15)
    torch.testing.assert_close(shared.move(wild[:1], 0 * wild[:1], images), target[:1], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "argument", "message"),
    [
        (lambda mask: Masked(Linf(0.1), mask), torch.ones(*SIZE), r"`mask` must be \(1,1,H,W\)"),
        (lambda mask: Masked(Linf(0.1), mask), torch.ones(1, 3, *SIZE), r"`mask` must be \(1,1,H,W\)"),
        (lambda mask: Masked(Linf(0.1), mask), torch.full((1, 1, *SIZE), 0.5), "zeros and ones"),
        (lambda mask: Masked(Linf(0.1), mask), torch.zeros(1, 1, *SIZE), "row 0"),
        (Grey, Masked(L1(3.0), torch.ones(1, 1, 6, 6)), "`grey` cannot be combined with an L1 ball"),
    ],
)
def test_an_invalid_mask_or_inner_set_is_refused(make, argument, message):
    with pytest.raises(ValueError, match=message):
        make(argument)


@pytest.mark.parametrize(
    "perturbation",
    [Masked(Linf(0.1), mask(2)), Masked(Linf(0.1), torch.ones(1, 1, 12, 13)), Universal(Masked(Linf(0.1), mask(3)))],
    ids=["rows", "size", "shared"],
)
def test_a_mask_that_does_not_fit_is_refused(net, perturbation):
    with pytest.raises(ValueError, match="a row for each picture"):
        run(net, perturbation)


def test_a_subset_of_the_pictures_keeps_its_masks_in_any_wrapping():
    masks = torch.zeros(3, 1, 6, 6)
    for i in range(3):
        masks[i, 0, i] = 1
    rows, delta = torch.tensor([0, 2]), torch.ones(2, 3, 6, 6)
    for wrap in (lambda b: b, Grey, lambda b: LowFrequency(b, 6), lambda b: Masked(b, torch.ones(1, 1, 6, 6))):
        part = wrap(Masked(Linf(0.1), masks)).take(rows)
        shift = part.project(delta, torch.full((2, 3, 6, 6), 0.5))
        assert torch.equal(shift != 0, (masks[rows] == 1).expand(2, 3, 6, 6))
