"""Laws of a perturbation that a clip's frames share, interpolated between key frames."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.data.gallery import Pictures
from attacks.data.table import Entry
from attacks.perturbations import Universal
from attacks.perturbations.keyframes import Keyframes, between
from attacks.study.perturbation import keyframe_places
from tests.helpers.sets import BALLS, SIZE, assert_files, attack_pictures, ball, double, levels, random_like, seed

CONVEX = [name for name in BALLS if name != "l0"]
FRAMES = 7

every_convex = pytest.mark.parametrize("name", CONVEX)
QUICK = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


def clips(*sizes):
    """Pictures of clips of so many frames, as rows of a table."""
    names = [f"clip {number}" for number, size in enumerate(sizes) for _ in range(size)]
    entries = tuple(Entry(Path(), str(row), cluster=name, where=f"line {row}") for row, name in enumerate(names))
    return Pictures(tuple(map(str, range(len(names)))), torch.zeros(len(names), 3, *SIZE), entries=entries)


def clip_set(name, keys=3, **arguments):
    return between(ball(name, **arguments), keyframe_places(keys, clips(FRAMES)))


def frames(value=0):
    return levels(FRAMES, 3, *SIZE, value=value)


def key_delta(value, scale=1.0, keys=3):
    return random_like(torch.zeros(1, 3 * keys, *SIZE, dtype=double), value, scale)


def test_weights_interpolate_linearly_within_each_clip_and_reach_no_other():
    places = keyframe_places(3, clips(5, 1, 2))
    weights = between(ball("linf"), places).weights
    # Of the last clip no frame is near the middle key frame: it is left out.
    expected = torch.zeros(8, 6, dtype=double)
    expected[[0, 2, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5]] = 1
    expected[[1, 1, 3, 3], [0, 1, 1, 2]] = 0.5
    assert torch.equal(weights, expected)


def test_second_differences_vanish_between_key_frames_and_one_key_frame_is_a_universal_set():
    tied, delta = clip_set("linf"), key_delta(0)
    rows = tied.interpolated(delta)
    assert torch.equal(rows[0], delta[0, :3]) and torch.equal(rows[3], delta[0, 3:6])
    bends = rows[2:] - 2 * rows[1:-1] + rows[:-2]
    torch.testing.assert_close(bends[[0, 1, 3, 4]], torch.zeros_like(bends[:4]), rtol=0, atol=1e-12)
    assert bends[2].abs().amax() > 0.1
    assert clip_set("linf", keys=1) == Universal(ball("linf"))


@every_convex
def test_the_gradient_of_key_frames_is_the_adjoint_of_interpolation(name):
    tied, pixels = clip_set(name), torch.full((FRAMES, 3, *SIZE), 0.5, dtype=double)
    delta = key_delta(1, 1e-3).requires_grad_()
    slope = random_like(pixels, 2, 1.0)
    (attack_pictures(tied, pixels, delta) * slope).sum().backward()
    by_hand = sum(torch.einsum("k,chw->kchw", weight, row) for weight, row in zip(tied.weights, slope, strict=True))
    torch.testing.assert_close(delta.grad, by_hand.reshape(delta.shape), rtol=1e-12, atol=1e-12)
    # A row of key frames for each picture, as several groups of views need it, is the same.
    apart = delta.detach().expand(FRAMES, -1, -1, -1)
    torch.testing.assert_close(tied.interpolated(apart), tied.interpolated(delta.detach()), rtol=0, atol=1e-15)


@every_convex
@given(seeds, st.floats(-3, 3).map(lambda power: 10.0**power))
@QUICK
def test_projection_is_feasible_idempotent_and_leaves_the_set_alone(name, value, scale):
    tied, images = clip_set(name), frames(value)
    point = tied.project(key_delta(value, scale), images)
    keys = point.unflatten(1, (3, 3))[0]
    assert torch.equal(keys, ball(name).project(key_delta(value, scale).unflatten(1, (3, 3))[0], None))
    torch.testing.assert_close(tied.project(point, images), point, rtol=1e-14, atol=1e-14)
    assert tied.norm(point).shape == (1,) and tied.norm(point).item() <= tied.eps * (1 + 1e-9)
    assert (ball(name).norm(tied.interpolated(point)) <= tied.eps * (1 + 1e-9)).all()  # by convexity


@every_convex
def test_no_move_of_that_length_lowers_a_linear_loss_more(name):
    tied, grad, zero = clip_set(name), key_delta(3), torch.zeros(1, 9, *SIZE, dtype=double)
    move = tied.descend(grad, 0.5, zero, frames())
    assert tied.length(move).item() == pytest.approx(0.5, rel=1e-9) or name == "l1"  # which moves in its own unit
    for value in range(20):
        other = key_delta(value).unflatten(1, (3, 3))[0]
        other = (0.5 * other / ball(name).norm(other).view(-1, 1, 1, 1)).reshape(zero.shape)
        assert (grad * move).sum() <= (grad * other).sum()


@every_convex
@given(seeds)
@QUICK
@pytest.mark.filterwarnings("ignore:an 8-bit file holds nothing")
def test_files_of_all_frames_are_within_eps_to_the_digit(name, value):
    tied, images = clip_set(name), frames(value)
    for delta in (tied.noise(images, seed(value)), tied.project(key_delta(value), images)):
        rows = tied.quantise(delta, images)
        assert rows.shape == images.shape
        assert_files(replace(ball(name)), images, rows)


def test_some_frames_have_the_same_key_frames():
    tied, delta, images = clip_set("linf"), key_delta(5, 0.01), frames()
    rows = torch.tensor([1, 4])
    part, whole = (attack_pictures(*entry, delta) for entry in ((tied.take(rows), images[rows]), (tied, images)))
    torch.testing.assert_close(part, whole[rows], rtol=0, atol=1e-15)
    assert isinstance(tied.take(rows), Keyframes)


def test_a_table_without_clips_or_out_of_order_is_refused():
    pictures = clips(1, 1)
    with pytest.raises(ValueError, match=r"^`perturbation.keyframes` needs a table in data.path with several rows"):
        keyframe_places(2, pictures)
    entries = clips(2, 2).entries
    mixed = replace(clips(2, 2), entries=(entries[0], entries[2], entries[1], entries[3]))
    mixed = replace(mixed, entries=(*mixed.entries, entries[3]), names=(*mixed.names, "4"))
    with pytest.raises(ValueError, match=r"^`cluster`: the rows of a clip must follow one another.* line 1 goes on"):
        keyframe_places(2, mixed)
    assert keyframe_places(None, pictures) is None
