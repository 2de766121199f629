"""Low-frequency perturbations and smoothed gradients, against SciPy and torchattacks."""

import numpy as np
import pytest
import scipy.fft
import scipy.ndimage
import scipy.optimize
import scipy.stats
import torch

from attacks import EOT, PGD, Toward, attack
from attacks.perturbations import L0, L1, L2, Grey, Linf, LowFrequency, Masked, Smoothed, Universal
from attacks.perturbations.subspace import lowest
from attacks.study.pipeline import preset
from tests.helpers.sets import double, levels, random, seed
from tests.helpers.small import small
from tests.helpers.solving import Untargeted
from transforms.draws import Latin, stream

CPU = torch.device("cpu")
BALLS = {"linf": Linf(0.1), "l2": L2(0.7)}
every_ball = pytest.mark.parametrize("inner", BALLS.values(), ids=BALLS)


def low(values, keep):
    """By SciPy: the lowest coefficients, the others zero."""
    spectrum = scipy.fft.dctn(values.numpy(), axes=(2, 3), norm="ortho")
    spectrum[:, :, keep:], spectrum[..., keep:] = 0, 0
    return torch.from_numpy(scipy.fft.idctn(spectrum, axes=(2, 3), norm="ortho"))


@pytest.mark.parametrize("side", [1, 2, 7, 32])
def test_the_matrix_is_the_orthonormal_dct(side):
    expected = scipy.fft.dct(np.eye(side), axis=0, norm="ortho")
    np.testing.assert_allclose(lowest(side, side, double, CPU), expected, atol=1e-13)


@pytest.mark.parametrize("keep", [1, 4, 9, 50])
def test_restriction_equals_the_low_pass_by_scipy(keep):
    delta = random(2, 3, 9, 12)
    result = LowFrequency(Linf(0.1), keep).restrict(delta)
    torch.testing.assert_close(result, low(delta, keep), rtol=0, atol=1e-13)
    torch.testing.assert_close(LowFrequency(Linf(0.1), keep).restrict(result), result, rtol=0, atol=1e-13)


@every_ball
def test_steps_and_random_points_lie_in_the_band(inner):
    images, grad = torch.full((2, 3, 9, 12), 0.5, dtype=double), random(2, 3, 9, 12)
    band = LowFrequency(inner, 4)
    step = band.steepest(grad)
    points = [step, band.noise(images, seed()), band.start(images, seed())]
    points.append(band.move(points[-1], band.descend(grad, 0.01, points[-1], images), images))
    for point in points:
        torch.testing.assert_close(low(point, 4), point, rtol=0, atol=1e-13)
    torch.testing.assert_close(band.norm(step), torch.ones(2, dtype=double))
    assert ((step * grad).sum((1, 2, 3)) > 0).all()


def network(dtype=double):
    return small(width=4, kernel=3, features=6, size=(32, 32)).to(dtype)


def run(perturbation, steps=20, optimiser=None):
    images = levels(3, 3, 32, 32)
    images[0, :, :10], images[1, :, 20:] = 0, 1
    parts = {"encoder": network(), "objective": Toward(), "eot": EOT(views=1), "optimiser": optimiser or PGD()}
    return images, [*attack(images, random(3, 6), perturbation=perturbation, steps=steps, **parts)]


@every_ball
@pytest.mark.parametrize("shared", [False, True])
def test_an_attack_is_feasible_and_in_the_band_up_to_clipping(inner, shared):
    band = LowFrequency(inner, 6)
    images, steps = run(Universal(band) if shared else band)
    for step in steps:
        assert (inner.norm(step.delta) <= inner.eps * (1 + 1e-12)).all()
        if not shared:
            assert (images + step.delta).min() >= 0
            assert (images + step.delta).max() <= 1
    delta = steps[-1].delta
    outside = (delta - low(delta, 6)).square().sum((1, 2, 3)) / delta.square().sum((1, 2, 3))
    assert (outside < 0.1).all(), outside  # a random sign pattern has 0.96
    if shared and isinstance(inner, L2):
        assert (outside < 1e-20).all()  # nothing is clipped
    assert steps[-1].estimate.mean.mean() < steps[0].estimate.mean.mean() - 1e-3


def test_a_masked_band_is_filtered_once_and_then_masked():
    mask = torch.zeros(1, 1, 32, 32)
    mask[..., 8:20, 5:25] = 1
    selection = mask[0, 0].bool()
    images, delta = torch.full((1, 3, 32, 32), 0.5, dtype=double), torch.zeros(1, 3, 32, 32, dtype=double)
    masked = Masked(LowFrequency(L2(50.0), 4), mask)  # so wide that nothing is clipped
    for i in range(8):
        by = masked.descend(random(1, 3, 32, 32, value=i), 0.02, delta, images)
        delta = masked.move(delta, by, images)
    rows = lowest(32, 4, double, CPU)
    basis = torch.kron(rows, rows).view(16, 32, 32)[:, selection]
    pattern = delta[0][:, selection]
    torch.testing.assert_close(pattern @ torch.linalg.pinv(basis) @ basis, pattern, rtol=0, atol=1e-12)
    assert pattern.abs().max() > 1e-3
    torch.testing.assert_close(masked.move(delta, 0 * delta, images), delta, rtol=0, atol=1e-15)
    assert not (delta * (1 - mask)).any()


def test_the_kernel_equals_that_of_the_published_code():
    kernel = scipy.stats.norm.pdf(np.linspace(-3, 3, 15))
    kernel = np.outer(kernel, kernel) / kernel.sum() ** 2
    grad = random(2, 3, 20, 31)
    target = scipy.ndimage.convolve(grad.numpy(), kernel[None, None], mode="constant")
    np.testing.assert_allclose(Smoothed(Linf(0.1), 7 / 3).smooth_gradient(grad), target, rtol=0, atol=1e-14)


@pytest.mark.parametrize("sigma", [0.3, 7 / 3, 20.0])
def test_smoothing_is_self_adjoint(sigma):
    a, b, smooth = random(1, 2, 9, 12), random(1, 2, 9, 12, value=1), Smoothed(Linf(0.1), sigma).smooth_gradient
    torch.testing.assert_close((smooth(a) * b).sum(), (a * smooth(b)).sum())


def test_smoothing_changes_only_the_gradient():
    optimiser = PGD(rel_step_size=0.2)
    images, (plain,) = run(Linf(0.1), steps=1, optimiser=optimiser)
    _, (smooth,) = run(Smoothed(Linf(0.1), 2.0), steps=1, optimiser=optimiser)
    assert torch.equal(plain.estimate.mean, smooth.estimate.mean)
    target = Smoothed(Linf(0.1), 2.0).smooth_gradient(plain.estimate.grad)
    torch.testing.assert_close(smooth.estimate.grad, target, rtol=0, atol=1e-15)
    start = Linf(0.1).start(images, seed(stream(0, "start")))
    assert torch.equal(smooth.delta, Linf(0.1).move(start, -0.2 * 0.1 * target.sign(), images))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # theirs, not ours
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_ti_equals_that_of_torchattacks(decay):
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    net, images = network(torch.float32), levels(8, 3, 32, 32, dtype=torch.float32)
    labels = torch.randint(0, 6, (8,), generator=seed())
    theirs = module.TIFGSM(net, 8 / 255, 2 / 255, 10, decay, diversity_prob=0.0)(images, labels)
    parts = {"encoder": net, "objective": Untargeted(), "eot": EOT(views=1), "steps": 10}
    optimiser = PGD(0.25, momentum=0.9999999 if decay else 0.0, schedule="constant")
    perturbation = Smoothed(Linf(8 / 255, random_start=False), 7 / 3)
    *_, end = attack(images, labels, optimiser=optimiser, perturbation=perturbation, **parts)
    differ = ((images + end.delta - theirs).abs() > 1e-6).float().mean()
    assert differ < 1e-3  # a gradient of nearly zero may take either sign


def test_si_draws_each_of_its_five_scales_once_a_step():
    # SI: x / 2^i for i = 0..4, each in every step where draws are stratified.
    views, images = preset("si"), torch.rand(1, 3, 8, 8, generator=seed(), dtype=double)
    u = Latin()(5, views.dims, seed=1, step=3).to(double)
    output = sorted(float((view / images[0]).mean()) for view in views(images, u))
    assert output == pytest.approx([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])


def test_input_diversity_shrinks_and_pads_or_keeps_the_picture():
    views, images = preset("di"), torch.ones(1, 3, 60, 60, dtype=double)
    output = views(images, torch.rand(400, views.dims, generator=seed(), dtype=double))
    share = output.mean((1, 2, 3))
    assert 0.4 < (share == 1).double().mean() < 0.6  # with probability 0.5 untouched
    assert share.min() > 0.9**2 - 0.03
    corners = output[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners.amin(1)[share < 0.95] < 0.05).all()


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (lambda inner: LowFrequency(inner, 4), (L1(3.0), L0(5), Grey(L0(5))), "is not sparse"),
        (lambda keep: LowFrequency(Linf(0.1), keep), (0, -1, 2.5), "`keep` must be a whole number"),
        (lambda sigma: Smoothed(Linf(0.1), sigma), (0.0, -1.0, float("nan")), "`smooth` must be above 0"),
    ],
    ids=["sparse", "keep", "sigma"],
)
def test_arguments_out_of_range_are_refused(make, values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            make(value)
