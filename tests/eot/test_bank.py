"""Evaluation on views that no attack has seen."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, PGD, Linf, Toward, attack, bank, evaluate
from tests.helpers.fake_device import Pretended, Waits, on_device
from tests.helpers.wrong import refused
from transforms import Affine, Brightness, Compose, Downscale, Sobol
from transforms.draws import Uniform
from transforms.scene import Layer, Scene, scene_of

VIEWS = Compose([Affine(degrees=30, translate=0.1), Downscale((8, 12)), Brightness(0.2)])
DIRECT = Compose()
double = torch.float64


@pytest.fixture
def net():
    net = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 6))
    return net.double().eval().requires_grad_(False)


@pytest.fixture
def images():
    return torch.rand(4, 3, 12, 14, dtype=double)


def judge(transforms, views):
    result = bank(transforms, views, seed=0, purpose="evaluate")
    return result._replace(u=result.u.double())


class Recorder:
    """Draws that record their points."""

    def __init__(self, draws):
        self.draws, self.rows = draws, []

    def __call__(self, n, dims, *, seed, step=0):
        points = self.draws(n, dims, seed=seed, step=step)
        self.rows.append(points)
        return points


@pytest.mark.parametrize("draws", [Sobol(), Uniform()])
@pytest.mark.parametrize("seed", range(3))
def test_no_two_purposes_share_a_view(draws, seed, images, net):
    # Single coordinates too: a shifted or permuted copy of the bank would be no independent evidence.
    recorder = Recorder(draws)
    eot = EOT(VIEWS, recorder, views=8)
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "optimiser": PGD(), "eot": eot}
    list(attack(images, torch.randn(4, 6, dtype=double), steps=8, seed=seed, **parts))
    points = torch.cat(recorder.rows)
    assert len(points) == 64
    banks = [(seed, "evaluate"), (seed, "select"), (seed + 1, "select")]
    sets = [points, *(bank(VIEWS, 64, seed=draw_seed, purpose=purpose).u for draw_seed, purpose in banks)]
    for table, other in itertools.combinations(sets, 2):
        assert not (table[:, None] == other).all(2).any()
        assert (table[:, None] == other).double().mean() < 1e-3


def test_a_bank_covers_the_cube_evenly():
    # Sobol: of 64 points, each quarter of each axis holds exactly 16. The same seed gives the same points.
    u = bank(VIEWS, 64, seed=0, purpose="evaluate").u
    assert torch.equal(u, bank(VIEWS, 64, seed=0, purpose="evaluate").u)
    counts = torch.stack([((4 * u).floor() == quarter).sum(0) for quarter in range(4)])
    assert (counts == 16).all()


def test_features_equal_those_of_single_views(images, net):
    views = judge(VIEWS, 5)
    expected = torch.stack([torch.cat([net(VIEWS(image[None], u[None])) for u in views.u]) for image in images])
    torch.testing.assert_close(views.features(images, net, chunk=64), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 5, 11, 64])
def test_the_chunk_does_not_change_the_scores(images, net, chunk):
    views, clean = judge(VIEWS, 5), net(images)
    expected_scores = evaluate(images, clean, clean, encoder=net, bank=views, chunk=5)
    parts = evaluate(images, clean, clean, encoder=net, bank=views, chunk=chunk)
    torch.testing.assert_close(parts.cosine, expected_scores.cosine, rtol=0, atol=1e-12)
    assert torch.equal(parts.nearest, expected_scores.nearest)


def test_scores_equal_a_plain_search(images, net):
    # Neither the lengths of the embeddings nor those of the gallery count, only directions.
    views, clean = judge(VIEWS, 6), torch.randn(4, 6, dtype=double)
    gallery = torch.randn(9, 6, dtype=double)
    lengths = 1 + torch.arange(9, dtype=double)[:, None]
    scores = evaluate(images, 5 * clean, gallery * lengths, encoder=net, bank=views)
    for i, rows in enumerate(views.features(images, net, chunk=6)):
        torch.testing.assert_close(scores.cosine[i], F.cosine_similarity(rows, clean[[i]], dim=1))
        for j, row in enumerate(rows):
            assert scores.nearest[i, j] == F.cosine_similarity(row[None], gallery).argmax()


#: Of four pictures with embeddings of six values.
UNFIT = {
    "8 bits": ({"images": lambda images: 255 * images}, r"`images` must lie in \[0, 1\].*divide 8-bit values by 255"),
    "negative": ({"images": lambda images: images - 0.5}, r"`images` must lie in \[0, 1\]"),
    "nan": ({"images": lambda images: images.where(images < 0.5, torch.nan)}, r"`images` must lie in \[0, 1\]"),
    "a layer": ({"images": lambda images: over(images, 255.0)}, r"`images` must lie in \[0, 1\]; got 255 to 255"),
    "one picture": ({"images": lambda images: images[0]}, r"`images` must be floating \(N,C,H,W\)"),
    "no picture": ({"images": lambda images: images[:0]}, "`images` must hold at least one image"),
    "rows": ({"clean": lambda clean: clean[:2]}, r"`clean` must hold one row per image .*got \(2, 6\) for 4 images"),
    "more rows": ({"clean": lambda clean: clean.repeat(2, 1)}, "`clean` must hold one row per image"),
    "width": (
        {"gallery": lambda rows: rows[:, :5]},
        r"`gallery` must .*\(G,6\); got shape \(4, 5\): embed both with",
    ),
    "another encoder": (
        {"clean": lambda rows: rows[:, :1], "gallery": lambda rows: rows[:, :1]},
        "`clean` must be embedded with `encoder`, 6 wide; got 1",
    ),
}


def over(images, value):
    """Pictures under a small layer of one value."""
    layer = Layer(torch.full((1, 3, 2, 2), value).to(images), None, 4 * torch.eye(3, dtype=images.dtype)[None])
    scene = scene_of(images)
    return Scene((*scene.layers, layer), scene.size)


@pytest.mark.parametrize(("change", "message"), UNFIT.values(), ids=UNFIT)
def test_what_cannot_be_scored_is_an_error_in_one_line(images, net, change, message):
    arguments = {"images": images, "clean": net(images), "gallery": net(images)}
    arguments |= {key: change_of(arguments[key]) for key, change_of in change.items()}
    refused(message, evaluate, **arguments, encoder=net, bank=judge(VIEWS, 3))


def test_pictures_on_a_device_must_lie_in_the_range(images, net):
    clean = net(images)
    with Waits(), pytest.raises(ValueError, match=r"`images` must lie in \[0, 1\]"):
        device_rows = Pretended(clean)
        evaluate(Pretended(255 * images), device_rows, device_rows, encoder=on_device(net), bank=judge(VIEWS, 3))


def test_pictures_of_zeros_and_ones_and_a_scene_and_a_rounding_beyond_the_range_are_scored(images, net):
    clean, rounded, above = net(images), images.round(), images.clone()  # a picture plus its perturbation rounds so
    above[0, 0, 0, 0], above[-1, 0, 0, 0] = 1 + torch.finfo(images.dtype).eps, -1e-17
    for pictures in (rounded, over(rounded, 1.0), above):
        cosine = evaluate(pictures, clean, clean, encoder=net, bank=judge(VIEWS, 3)).cosine
        assert cosine.shape == (4, 3) and cosine.isfinite().all()


def test_an_encoder_in_training_mode_is_refused_and_left_as_it_was(images):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.BatchNorm2d(3), nn.Flatten()).double()
    mean, clean = net[1].running_mean.clone(), torch.rand(4, 12, dtype=double)
    with pytest.raises(ValueError, match=r"`encoder` is in training mode.*\.eval\(\)"):
        evaluate(images, clean, clean, encoder=net, bank=judge(VIEWS, 3))
    assert torch.equal(net[1].running_mean, mean)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((VIEWS, "x"), "`views` must be a whole number of views, at least 1; got 'x'"),
        ((VIEWS, 0), "`views` must be a whole number of views, at least 1; got 0"),
        (([Affine()], 8), r"`transforms` must be a Compose, .*got \[Affine"),
    ],
)
def test_a_bank_of_no_pipeline_or_no_number_of_views_is_refused(arguments, message):
    refused(message, bank, *arguments, seed=0, purpose="evaluate")


def test_losses_equal_those_of_single_views(images, net):
    views, anchor = judge(VIEWS, 6), torch.randn(4, 6, dtype=double)
    rows = views.features(images, net, chunk=64)
    expected = torch.stack([-F.cosine_similarity(rows[i], anchor[[i]]) for i in range(4)])
    torch.testing.assert_close(views.losses(images, anchor, net, Toward(), chunk=4), expected)


def test_evaluation_holds_no_graph(images, net):
    net.requires_grad_()
    assert not judge(DIRECT, 1).features(images.requires_grad_(), net, chunk=1).requires_grad
