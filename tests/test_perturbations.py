"""Laws of every perturbation set: what a delta may be, and which step goes furthest."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import L2, Linf

SETS = {"linf": Linf, "l2": L2}
EPS = {"linf": 8 / 255, "l2": 0.7}  # so that the L2 ball reaches out of the box of a 12 x 9 picture here and there

every_set = pytest.mark.parametrize("name", SETS)
double = torch.float64
few = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
scales = st.floats(-6, 6).map(lambda power: 10.0**power)


def make(name, **arguments):
    return SETS[name](**{"eps": EPS[name], **arguments})


def seed(value=0):
    return torch.Generator().manual_seed(value)


def pictures(value=0, count=4, dtype=torch.float32):
    """8-bit pictures that touch both ends of the range: one black, one white, the others in between."""
    images = torch.randint(0, 256, (count, 3, 9, 12), generator=seed(value)).to(dtype) / 255
    images[0], images[-1] = 0, 1
    return images


def random_like(images, value, scale):
    return scale * torch.randn(images.shape, generator=seed(value), dtype=images.dtype)


def assert_feasible(perturbation, images, delta):
    """Within eps up to rounding; within the box exactly, because a file holds no more."""
    rounding = 4 * torch.finfo(images.dtype).eps
    assert (perturbation.norm(delta) <= perturbation.eps * (1 + 16 * rounding) + rounding).all()
    assert (images + delta).min() >= 0
    assert (images + delta).max() <= 1


@every_set
@given(seeds, scales, st.sampled_from([torch.float32, torch.float64]))
@few
def test_project_is_feasible(name, value, scale, dtype):
    images = pictures(value, dtype=dtype)
    assert_feasible(make(name), images, make(name).project(random_like(images, value, scale), images))


@every_set
@pytest.mark.parametrize("method", ["start", "noise"])
@given(value=seeds)
@few
def test_random_points_are_feasible(name, method, value):
    images = pictures(value)
    assert_feasible(make(name), images, getattr(make(name), method)(images, seed(value)))


@every_set
@given(seeds, scales)
@few
def test_project_is_idempotent(name, value, scale):
    images = pictures(value, dtype=double)
    once = make(name).project(random_like(images, value, scale), images)
    torch.testing.assert_close(make(name).project(once, images), once, rtol=0, atol=1e-15)


@every_set
@given(seeds, st.floats(0, 1))
@few
def test_project_leaves_a_feasible_point_alone(name, value, share):
    # A share of a feasible point is feasible, for zero is; a set that rescaled to its edge would move it.
    images = pictures(value, dtype=double)
    delta = share * make(name).project(random_like(images, value, 1.0), images)
    torch.testing.assert_close(make(name).project(delta, images), delta, rtol=0, atol=1e-15)


@every_set
@given(seeds, scales)
@few
def test_ball_is_the_nearest_point_of_the_ball_and_knows_no_box(name, value, scale):
    delta = random_like(pictures(dtype=double), value, scale)
    once = make(name).ball(delta)
    assert (make(name).norm(once) <= EPS[name] * (1 + 1e-12)).all()
    torch.testing.assert_close(make(name).ball(once), once, rtol=1e-15, atol=0)
    shorter = delta * (EPS[name] / delta.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None, None]
    wanted = delta.clamp(-EPS[name], EPS[name]) if name == "linf" else shorter
    torch.testing.assert_close(once, wanted, rtol=1e-12, atol=0)


def test_linf_projects_to_the_nearest_point():
    images = pictures(dtype=double)
    delta, linf = random_like(images, 1, 0.1), make("linf")
    low, high = (-images).clamp(min=-linf.eps), (1 - images).clamp(max=linf.eps)
    torch.testing.assert_close(linf.project(delta, images), delta.clamp(low, high), rtol=0, atol=1e-15)


def test_l2_projects_to_the_nearest_point_inside_the_box():
    images = torch.full((3, 3, 9, 12), 0.5, dtype=double)
    delta = random_like(images, 1, 1.0)
    nearest = delta * (0.7 / delta.flatten(1).norm(dim=1))[:, None, None, None]
    torch.testing.assert_close(make("l2").project(delta, images), nearest, rtol=1e-12, atol=0)


@every_set
def test_norm_is_that_of_each_picture(name):
    delta = torch.randn(3, 3, 5, 7, dtype=double)
    wanted = torch.linalg.vector_norm(delta, ord=math.inf if name == "linf" else 2, dim=(1, 2, 3))
    torch.testing.assert_close(make(name).norm(delta), wanted, rtol=1e-14, atol=0)


@given(seeds)
@few
def test_linf_noise_has_the_full_budget_where_the_box_allows(value):
    images, linf = pictures(value, dtype=double), make("linf")
    noise = linf.noise(images, seed(value))
    low, high = (-images).clamp(min=-linf.eps), (1 - images).clamp(max=linf.eps)
    short = torch.minimum((noise - low).abs(), (noise - high).abs())
    assert short.max() <= 1e-15
    inside = (low == -linf.eps) & (high == linf.eps)
    assert 0.4 < (noise[inside] < 0).double().mean() < 0.6


def test_l2_noise_has_the_full_budget_where_the_box_allows():
    images = torch.full((5, 3, 9, 12), 0.5, dtype=double)
    noise = make("l2").noise(images, seed())
    torch.testing.assert_close(make("l2").norm(noise), torch.full((5,), 0.7, dtype=double), rtol=1e-12, atol=0)


@every_set
@pytest.mark.parametrize("method", ["start", "noise"])
def test_random_points_follow_the_seed(name, method):
    images = pictures()
    first, again, other = (getattr(make(name), method)(images, seed(value)) for value in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_set
def test_random_start_is_inside_and_not_zero(name):
    images = torch.full((4, 3, 9, 12), 0.5)
    norms = make(name).norm(make(name).start(images, seed()))
    assert (norms > 0.3 * EPS[name]).all()


@every_set
def test_start_is_zero_without_random_start(name):
    assert not make(name, random_start=False).start(pictures(), seed()).any()


@every_set
@given(seeds, scales)
@few
def test_steepest_attains_the_dual_norm_with_norm_one(name, value, scale):
    grad = random_like(pictures(dtype=double), value, scale)
    step = make(name).steepest(grad)
    dual = torch.linalg.vector_norm(grad, ord=1 if name == "linf" else 2, dim=(1, 2, 3))
    torch.testing.assert_close((step * grad).sum((1, 2, 3)), dual, rtol=1e-12, atol=0)
    torch.testing.assert_close(make(name).norm(step), torch.ones(4, dtype=double), rtol=1e-12, atol=0)


@every_set
def test_a_zero_gradient_gives_a_zero_step(name):
    grad = torch.randn(2, 3, 9, 12)
    grad[0] = 0
    step = make(name).steepest(grad)
    assert not step[0].any()
    assert step[1].any()
    assert step.isfinite().all()


@every_set
@pytest.mark.parametrize("method", ["project", "steepest", "norm", "quantise"])
def test_a_picture_does_not_feel_its_neighbours(name, method):
    # One neighbour far outside the set, one deep inside: a norm over the batch would mix them.
    images = pictures(dtype=double)
    delta = random_like(images, 1, 1.0) * torch.tensor([100, 1, 0.01, 10], dtype=double)[:, None, None, None]

    def apply(rows):
        arguments = (delta[rows], images[rows]) if method in ("project", "quantise") else (delta[rows],)
        return getattr(make(name), method)(*arguments)

    torch.testing.assert_close(torch.cat([apply([i]) for i in range(4)]), apply(slice(None)), rtol=1e-14, atol=0)


@every_set
@pytest.mark.parametrize("factor", [1.0, 0.93, 0.06])  # 8/255 is 8 grey levels; 0.06 of it less than half a level
@given(value=seeds)
@few
def test_quantised_pictures_are_files_within_eps(name, factor, value):
    images, perturbation = pictures(value), make(name, eps=factor * EPS[name])
    levels = (images + perturbation.quantise(perturbation.noise(images, seed(value)), images)) * 255
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-4)
    # The delta that counts is the one between the files.
    exact = (levels.round().double() - (images * 255).round().double()) / 255
    assert (perturbation.norm(exact) <= perturbation.eps * (1 + 2e-5)).all()  # the pictures are float32
    assert 0 <= levels.min() <= levels.max() <= 255


@every_set
def test_quantising_moves_a_value_by_half_a_level_at_most(name):
    # Where there is room: half the budget, so that nothing has to be shrunk.
    images = pictures()
    delta = make(name, eps=EPS[name] / 2).noise(images, seed())
    moved = make(name).quantise(delta, images) - delta
    assert moved.abs().max() <= 0.5 / 255 + 1e-6


@every_set
def test_quantising_keeps_most_of_the_budget(name):
    # 7.44 levels for L-inf: one shrink takes 7.44 to 7, not to nothing.
    images = torch.full((2, 3, 64, 64), 128 / 255)
    perturbation = make(name, eps=0.93 * EPS[name] if name == "linf" else 4.0)
    kept = perturbation.norm(perturbation.quantise(perturbation.noise(images, seed()), images))
    assert (kept > 0.9 * perturbation.eps).all()


@every_set
def test_quantising_twice_changes_nothing(name):
    images = pictures()
    once = make(name).quantise(make(name).noise(images, seed()), images)
    assert torch.equal(make(name).quantise(once, images), once)


@every_set
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_that_of_the_pictures(name, dtype):
    images, perturbation = pictures(dtype=dtype), make(name)
    start, noise = perturbation.start(images, seed()), perturbation.noise(images, seed())
    found = [start, noise, *(f(noise, images) for f in (perturbation.project, perturbation.quantise))]
    assert [delta.dtype for delta in found] == [dtype] * 4


@every_set
def test_scene_shows_the_attacked_picture(name):
    images = pictures()
    delta = make(name).noise(images, seed())
    (layer,) = make(name).scene(images, delta).layers
    assert torch.equal(layer.pixels, images + delta)
    assert layer.alpha is None


@pytest.mark.parametrize("eps", [0.0, -0.1, math.nan, math.inf])
@every_set
def test_eps_must_be_positive(name, eps):
    with pytest.raises(ValueError, match="`eps` must"):
        SETS[name](eps)


def test_eps_in_grey_levels_is_noticed():
    with pytest.raises(ValueError, match="did you mean 8/255"):
        Linf(8)
