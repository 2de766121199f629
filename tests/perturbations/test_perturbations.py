"""Laws of every perturbation set and wrapper: feasible deltas, and the steepest step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.perturbations import Grey, LowFrequency, Masked, Smoothed
from tests.helpers.sets import BALLS, SIZE, assert_files, ball, double, pictures, random_like, seed

MASK = (torch.rand(1, 1, *SIZE, generator=seed(3)) < 0.4).float()
WRAPS = {
    "plain": lambda inner: inner,
    "masked": lambda inner: Masked(inner, MASK),
    "grey": Grey,
    "low": lambda inner: LowFrequency(inner, 4),
    "smoothed": lambda inner: Smoothed(inner, 1.0),
    "masked grey": lambda inner: Masked(Grey(inner), MASK),
}
NAMES = [
    (wrap, ball)
    for wrap in WRAPS
    for ball in BALLS
    if (wrap != "low" or ball in ("linf", "l2")) and ("grey" not in wrap or ball != "l1")
]
CONVEX = [(wrap, ball) for wrap, ball in NAMES if ball != "l0"]
#: The best step in a band of frequencies, under L-inf, is not a sign of the gradient: see test_spectral.
DUAL = [(wrap, ball) for wrap, ball in NAMES if (wrap, ball) != ("low", "linf")]

every_set = pytest.mark.parametrize("name", NAMES, ids=" ".join)
QUICK = settings(max_examples=6, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
scales = st.floats(-6, 6).map(lambda power: 10.0**power)


def make(name, factor=1.0, **arguments):
    return WRAPS[name[0]](ball(name[1], factor, **arguments))


def restrict(perturbation, delta):
    """All wrapped sets, from the outermost inwards."""
    while hasattr(perturbation, "only"):
        delta, perturbation = perturbation.only(delta), perturbation.inner
    return delta


def lengths(values):
    return torch.tensor(values, dtype=double)


def assert_feasible(perturbation, images, delta):
    """Within eps up to rounding; within the box exactly, because a file holds nothing beyond it."""
    rounding = 4 * torch.finfo(images.dtype).eps
    assert (perturbation.norm(delta) <= perturbation.eps * (1 + 16 * rounding) + rounding).all()
    assert (images + delta).min() >= 0
    assert (images + delta).max() <= 1


@every_set
@pytest.mark.parametrize("method", ["start", "noise"])
@given(value=seeds)
@QUICK
def test_random_points_are_feasible_and_unchanged_by_project(name, method, value):
    images, perturbation = pictures(value, dtype=double), make(name)
    delta = getattr(perturbation, method)(images, seed(value))
    assert_feasible(perturbation, images, delta)
    torch.testing.assert_close(perturbation.project(delta, images), delta, rtol=0, atol=1e-14)


@every_set
@given(seeds, scales)
@QUICK
def test_moves_are_feasible(name, value, scale):
    images, perturbation = pictures(value), make(name)
    delta = perturbation.start(images, seed(value))
    for i in range(3):
        by = perturbation.descend(random_like(images, value + i, 1.0), scale, delta, images)
        delta = perturbation.move(delta, by, images)
        assert_feasible(perturbation, images, delta)


@every_set
@given(seeds, st.floats(0, 1))
@QUICK
def test_project_does_not_change_a_feasible_point(name, value, share):
    # A share of a feasible point is feasible, for zero is; a set that rescaled to its edge would move it.
    images = pictures(value, dtype=double)
    delta = share * make(name).project(random_like(images, value, 1.0), images)
    torch.testing.assert_close(make(name).project(delta, images), delta, rtol=0, atol=2e-15)


@pytest.mark.parametrize("name", CONVEX, ids=" ".join)
@given(seeds, scales)
@QUICK
def test_project_reduces_the_distance_to_every_feasible_point(name, value, scale):
    images, perturbation = pictures(value, dtype=double), make(name)
    delta = random_like(images, value, scale)
    other = perturbation.project(random_like(images, value + 1, 1.0), images)
    first, second = (x.flatten(1).norm(dim=1) for x in (delta - other, perturbation.project(delta, images) - other))
    assert (second <= first * (1 + 1e-12)).all()


@every_set
@given(seeds, scales)
@QUICK
def test_project_without_a_box_is_feasible_and_idempotent(name, value, scale):
    delta, perturbation = random_like(pictures(dtype=double), value, scale), make(name)
    projection = perturbation.project(delta, None)
    assert (perturbation.norm(projection) <= perturbation.eps * (1 + 1e-12)).all()
    assert projection.abs().max() <= max(1, perturbation.eps)
    torch.testing.assert_close(perturbation.project(projection, None), projection, rtol=0, atol=2e-15)


@pytest.mark.parametrize("name", DUAL, ids=" ".join)
@given(seeds, scales)
@QUICK
def test_steepest_attains_the_dual_norm_with_norm_one(name, value, scale):
    perturbation = make(name)
    grad = random_like(pictures(dtype=double), value, scale)
    step, output = perturbation.steepest(grad), restrict(perturbation, grad)
    sizes = output.abs()
    dual = {
        "linf": sizes.sum((1, 2, 3)),
        "l2": sizes.square().sum((1, 2, 3)).sqrt(),
        "l1": sizes.amax((1, 2, 3)),
        "l0": sizes.sum(1).amax((1, 2)),
    }[name[1]]
    torch.testing.assert_close((step * grad).sum((1, 2, 3)), dual, rtol=1e-12, atol=0)
    torch.testing.assert_close(perturbation.norm(step), torch.ones(4, dtype=double), rtol=1e-12, atol=0)
    torch.testing.assert_close(restrict(perturbation, step), step, rtol=0, atol=1e-12)


@every_set
def test_a_zero_gradient_gives_a_zero_step(name):
    images, perturbation = pictures(), make(name)
    grad = torch.randn_like(images)
    grad[0] = 0
    for step in (perturbation.steepest(grad), perturbation.descend(grad, 1.0, torch.zeros_like(images), images)):
        assert not step[0].any()
        assert step[1].any()
        assert step.isfinite().all()


@every_set
def test_every_delta_may_have_its_own_step_length(name):
    images, perturbation = pictures(dtype=double), make(name)
    grad, delta = random_like(images, 1, 1.0), perturbation.start(images, seed())
    batch = perturbation.descend(grad, lengths([0.1, 0.2, 0.3, 0.4]), delta, images)
    for i, length in enumerate([0.1, 0.2, 0.3, 0.4]):
        separate = perturbation.descend(grad, length, delta, images)
        torch.testing.assert_close(batch[i], separate[i], rtol=1e-12, atol=1e-15)
        assert (separate[1] * grad[1]).sum() < 0
        if name[1] != "l0":  # whose steps pass through pixels that are then dropped
            assert (perturbation.norm(separate) <= length * (1 + 1e-12)).all()


@every_set
def test_the_rows_of_a_batch_are_independent(name):
    # One neighbour far outside the set, one deep inside: a norm over the batch would mix them.
    images = pictures(dtype=double)
    delta = random_like(images, 1, 1.0) * lengths([100, 1, 0.01, 10])[:, None, None, None]
    grad = random_like(images, 2, 1.0) * lengths([0.01, 10, 1, 100])[:, None, None, None]

    def apply(method, rows):
        a = {
            "steepest": (grad[rows],),
            "norm": (delta[rows],),
            "descend": (grad[rows], 0.5, delta[rows] / 1000, images[rows]),
            "move": (delta[rows], grad[rows], images[rows]),
        }.get(method, (delta[rows], images[rows]))
        return getattr(make(name), method)(*a)

    for method in ("project", "steepest", "norm", "quantise", "descend", "move"):
        rows = torch.cat([apply(method, [i]) for i in range(4)])
        torch.testing.assert_close(rows, apply(method, slice(None)), rtol=1e-12, atol=1e-15)


@every_set
@pytest.mark.parametrize("factor", [1.0, 0.93, 0.06])  # 8/255 is 8 grey levels; 0.06 of it less than half a level
@given(value=seeds)
@QUICK
@pytest.mark.filterwarnings("ignore:an 8-bit file holds nothing")
def test_quantised_pictures_have_integer_levels_within_eps(name, factor, value):
    images, perturbation = pictures(value), make(name, factor)
    delta = perturbation.quantise(perturbation.noise(images, seed(value)), images)
    assert_files(perturbation, images, delta)
    assert torch.equal(perturbation.quantise(delta, images), delta)


@every_set
def test_random_points_repeat_with_the_seed_and_are_not_zero(name):
    images, perturbation = torch.full((4, 3, *SIZE), 0.5), make(name)
    for method, minimum in (("start", 0.3), ("noise", 0.8)):
        first, repeat, other = (getattr(perturbation, method)(images, seed(value)) for value in (1, 1, 2))
        assert torch.equal(first, repeat)
        assert not torch.equal(first, other)
        assert (perturbation.norm(first) > minimum * perturbation.eps).all()
    assert not make(name, random_start=False).start(images, seed()).any()


@every_set
def test_the_dtype_is_that_of_the_pictures(name):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        images, perturbation = pictures(dtype=dtype), make(name)
        start, noise = perturbation.start(images, seed()), perturbation.noise(images, seed())
        deltas = [start, noise, *(f(noise, images) for f in (perturbation.project, perturbation.quantise))]
        deltas += [perturbation.descend(noise, 0.1, start, images), perturbation.move(start, noise, images)]
        assert [delta.dtype for delta in deltas] == [dtype] * 6


@every_set
def test_the_scene_is_the_attacked_picture_with_the_restricted_gradient(name):
    images, perturbation = pictures(dtype=double), make(name)
    delta = perturbation.noise(images, seed())
    (layer,) = perturbation.scene(images, delta).layers
    assert torch.equal(layer.pixels, images + delta) and layer.alpha is None
    leaf, weight = torch.zeros_like(images).requires_grad_(), random_like(images, 2, 1.0)
    (grad,) = torch.autograd.grad((perturbation.scene(images, leaf).layers[0].pixels * weight).sum(), leaf)
    target = perturbation.smooth_gradient(weight) if name[0] == "smoothed" else restrict(perturbation, weight)
    torch.testing.assert_close(grad, target, rtol=0, atol=1e-14)
