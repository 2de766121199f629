"""Laws of a perturbation that all images share."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import EOT
from attacks.perturbations import Linf, Universal
from tests.helpers.sets import BALLS, assert_files, ball, double, pictures, random_like, seed
from transforms import Affine, Compose, Sobol
from transforms.draws import Grid, Latin, Uniform

EPS = {name: eps for name, (_, eps) in BALLS.items()}

every_set = pytest.mark.parametrize("name", BALLS)
QUICK = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


@pytest.mark.parametrize("name", ["linf", "l2"])
@pytest.mark.parametrize("method", ["start", "noise"])
def test_a_universal_point_equals_that_of_the_inner_set_without_a_box(name, method):
    # In the middle of the range the box does not bind. The first of `pictures` is black: it would bind there.
    grey, universal = torch.full((1, 3, 9, 12), 0.5), Universal(ball(name))
    point = getattr(universal, method)(pictures(), seed(3))
    torch.testing.assert_close(point, getattr(ball(name), method)(grey, seed(3)), rtol=0, atol=1e-7)
    assert (universal.norm(point) <= EPS[name] * (1 + 1e-6)).all()
    assert method == "start" or universal.norm(point).item() == pytest.approx(EPS[name], rel=1e-6)


@pytest.mark.parametrize("name", ["l1", "l0"])
def test_a_sparse_universal_point_uses_the_whole_range_of_values(name):
    # No picture can show a change by more than 1; a black or white one shows half of them all.
    universal = Universal(ball(name))
    start, noise = universal.start(pictures(), seed(3)), universal.noise(pictures(), seed(3))
    assert universal.norm(noise).item() == pytest.approx(EPS[name], rel=1e-6)
    assert set(noise.unique().tolist()) <= {-1.0, 0.0, 1.0}
    torch.testing.assert_close(start, noise / 2, rtol=0, atol=0)


@every_set
def test_a_universal_step_does_not_depend_on_the_pictures(name):
    universal, delta = Universal(ball(name)), torch.zeros(1, 3, 9, 12)
    for grad in (torch.ones_like(delta), -torch.ones_like(delta)):  # the first of `pictures` is black, the last white
        step = universal.descend(grad, 0.5, delta, pictures())
        assert torch.equal(step, universal.descend(grad, 0.5, delta, 1 - pictures()))
        assert (step * grad).sum() < 0


@every_set
@given(seeds, st.floats(-6, 6).map(lambda power: 10.0**power))
@QUICK
def test_project_is_onto_the_ball_of_the_inner_set_for_any_pictures(name, value, scale):
    images, universal = pictures(value, dtype=double), Universal(ball(name))
    delta = random_like(images[:1], value, scale)
    projection = universal.project(delta, images)
    assert torch.equal(projection, ball(name).project(delta, None))
    assert (universal.norm(projection) <= EPS[name] * (1 + 1e-12)).all()
    torch.testing.assert_close(universal.project(projection, images), projection, rtol=1e-15, atol=1e-15)


@every_set
def test_a_universal_scene_is_the_clamped_sum(name):
    images, universal = pictures(), Universal(ball(name))
    delta = universal.noise(images, seed())
    assert not ((images + delta).clamp(0, 1) == images + delta).all()  # otherwise the clamp would have no effect
    for rows in (delta, delta.expand_as(images)):
        (layer,) = universal.scene(images, rows).layers
        assert torch.equal(layer.pixels, (images + delta).clamp(0, 1))


def test_the_gradient_of_a_universal_delta_is_zero_only_beyond_the_bounds():
    images = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0])[None, None, None]
    delta = torch.tensor([0.0, 0.0, 0.01, -0.01, 0.01])[None, None, None]
    Universal(Linf(0.1)).scene(images, delta.requires_grad_()).layers[0].pixels.sum().backward()
    assert delta.grad.flatten().tolist() == [1, 1, 1, 0, 0]


@every_set
@pytest.mark.parametrize("factor", [1.0, 0.93, 0.06])
@given(value=seeds)
@QUICK
@pytest.mark.filterwarnings("ignore:an 8-bit file holds nothing")
def test_quantised_universal_pictures_have_integer_levels_within_eps(name, factor, value):
    images, universal = pictures(value), Universal(ball(name, factor))
    delta = universal.noise(images, seed(value))
    rows = universal.quantise(delta, images)
    assert rows.shape == images.shape
    assert torch.equal(universal.quantise(delta.expand_as(images), images), rows)
    assert_files(universal, images, rows)


@pytest.mark.parametrize("draws", [Sobol(), Uniform(), Latin(), Grid()], ids=lambda draws: type(draws).__name__)
def test_the_views_of_images_that_share_a_delta_are_consecutive_blocks(draws):
    eot, images = EOT(Compose([Affine(degrees=30)]), draws, views=32), pictures(dtype=double)
    points = eot.points(7, 5, images, times=3, pictures=4)
    blocks = [draws(32, 5, seed=7, step=5 * 4 + i).double() for i in range(12)]
    for picture in range(4):
        assert torch.equal(points[picture], torch.cat(blocks[picture::4]))
