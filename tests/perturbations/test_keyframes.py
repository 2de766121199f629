"""Laws of a perturbation that a clip's frames share, interpolated between key frames."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.data.gallery import Pictures
from attacks.data.table import Entry
from attacks.evaluation.sanity.short_attack import largest
from attacks.perturbations import Universal
from attacks.perturbations.keyframes import between
from attacks.study.perturbation import keyframe_places
from tests.helpers.sets import BALLS, SIZE, assert_files, attack_pictures, ball, double, levels, random_like, seed

FRAMES = 7
every_convex = pytest.mark.parametrize("name", [name for name in BALLS if name != "l0"])
QUICK = settings(max_examples=10, deadline=None, derandomize=True)


def clips(*names):
    """Pictures as rows of a table, by the clip of each."""
    entries = tuple(Entry(Path(), "", cluster=name, where=f"line {row}") for row, name in enumerate(names))
    return Pictures(tuple(map(str, range(len(names)))), torch.zeros(len(names), 3, *SIZE), entries=entries)


def clip_set(name, keys=3):
    return between(ball(name), keyframe_places(keys, clips(*"a" * FRAMES)))


def key_delta(value, scale=1.0):
    return random_like(torch.zeros(1, 9, *SIZE, dtype=double), value, scale)


def apart(delta):
    return delta.unflatten(1, (3, 3))[0]


def test_weights_interpolate_linearly_within_each_clip_and_reach_no_other():
    weights = between(ball("linf"), keyframe_places(3, clips(*"aaaaabcc"))).weights
    expected = torch.zeros(8, 6, dtype=double)  # the last clip has no frame near its middle key frame
    expected[[0, 2, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5]] = 1
    expected[[1, 1, 3, 3], [0, 1, 1, 2]] = 0.5
    assert torch.equal(weights, expected)
    assert clip_set("linf", keys=1) == Universal(ball("linf"))


@every_convex
def test_the_gradient_of_key_frames_is_the_adjoint_of_interpolation(name):
    tied, pixels = clip_set(name), torch.full((FRAMES, 3, *SIZE), 0.5, dtype=double)
    delta, slope = key_delta(1, 1e-3).requires_grad_(), random_like(pixels, 2, 1.0)
    (attack_pictures(tied, pixels, delta) * slope).sum().backward()
    by_hand = torch.stack([(tied.weights[:, k, None, None, None] * slope).sum(0) for k in range(3)])
    torch.testing.assert_close(apart(delta.grad), by_hand, rtol=1e-12, atol=1e-12)
    copies = delta.detach().expand(FRAMES, -1, -1, -1)  # as several groups of views need them
    torch.testing.assert_close(tied.interpolated(copies), tied.interpolated(delta), rtol=0, atol=1e-15)
    rows = torch.tensor([1, 4])
    part = attack_pictures(tied.take(rows), pixels[rows], delta)
    torch.testing.assert_close(part, attack_pictures(tied, pixels, delta)[rows], rtol=0, atol=1e-15)


@every_convex
@given(st.integers(0, 2**31), st.floats(-3, 3).map(lambda power: 10.0**power))
@QUICK
@pytest.mark.filterwarnings("ignore:an 8-bit file holds nothing")
def test_projection_is_that_of_each_key_frame_and_files_are_within_eps_to_the_digit(name, value, scale):
    tied, images, delta = clip_set(name), levels(FRAMES, 3, *SIZE, value=value), key_delta(value, scale)
    point = tied.project(delta, images)
    assert torch.equal(apart(point), ball(name).project(apart(delta), None))
    torch.testing.assert_close(tied.project(point, images), point, rtol=1e-14, atol=1e-14)
    assert tied.norm(point).shape == (1,) and tied.norm(point).item() <= tied.eps * (1 + 1e-9)
    for inside in (point, tied.noise(images, seed(value)), tied.start(images, seed(value))):
        assert (ball(name).norm(tied.interpolated(inside)) <= tied.eps * (1 + 1e-9)).all()  # by convexity
        assert_files(ball(name), images, tied.quantise(inside, images))


@every_convex
def test_no_move_of_that_length_lowers_a_linear_loss_more(name):
    tied, grad = clip_set(name), key_delta(3)
    assert largest(tied, torch.zeros(FRAMES, 3, *SIZE)) == largest(ball(name), torch.zeros(1, 3, *SIZE))
    move = tied.descend(grad, 0.5, torch.zeros_like(grad), torch.zeros(FRAMES, 3, *SIZE))
    for value in range(20):
        other = apart(key_delta(value))
        other = 0.5 * other / ball(name).norm(other).view(-1, 1, 1, 1)
        assert (grad * move).sum() <= (apart(grad) * other).sum()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("ab", r"^`perturbation.keyframes` needs a table in data.path with several rows of one `cluster`; got 2"),
        ("aaba", r"^`cluster`: the rows of a clip must follow one another.*line 3 goes on with .* line 0: sort"),
    ],
)
def test_a_table_without_clips_or_out_of_order_is_refused(names, message):
    with pytest.raises(ValueError, match=message):
        keyframe_places(2, clips(*names))
    with pytest.raises(ValueError, match=r"^`perturbation.keyframes` needs a table"):
        keyframe_places(2, replace(clips(*names), entries=()))
