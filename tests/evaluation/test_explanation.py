"""Gradients against a loop over views, Grad-CAM against its formula; whole explanations: their numbers, their cost,
and encoders for which some maps do not exist."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import bank, load_encoder
from attacks.data.gallery import tiles
from attacks.encoders import Defended, Phash, Preprocess, Stochastic, bits, untrained, with_preprocess
from attacks.encoders.randomness import encoder_draws, randomised
from attacks.eot.bank import Bank
from attacks.evaluation.clusters import Sample
from attacks.evaluation.explanation import (
    VIEWS,
    CountedEncoder,
    attribution,
    explain,
    explanation_summary,
    on_picture,
    places,
    reach,
    saliency,
    spatial_layer,
)
from attacks.report.panels import draw_explanations
from tests.helpers.small import small, smooth
from transforms import Affine, Compose, Jpeg
from transforms.auditing.coverage import coverage, effective
from transforms.camera import SensorNoise

PICTURES = smooth()
#: In float64.
WIDE, NET = PICTURES.double(), small().double()
HEAD_ON = Bank(Compose([]), torch.zeros(3, 0))


class Left(nn.Module):
    """Reads the left quarter of a picture, each value with its own weight."""

    def forward(self, images):
        return F.adaptive_avg_pool2d(images[..., : images.shape[3] // 4], (4, 2)).flatten(1)


class Cut(nn.Module):
    """Passes no gradient."""

    def forward(self, images):
        return images.detach().mean((2, 3))


def test_pixels_outside_the_encoders_view_are_dead():
    pictures = torch.rand(2, 3, 16, 32, generator=torch.Generator().manual_seed(0))
    result = reach(CountedEncoder(Left()), pictures, Left()(pictures.flip(2)), HEAD_ON, 8)
    left_quarter = (torch.arange(32) < 8).expand(2, 16, 32)
    assert torch.equal(result.sensitivity > 0, left_quarter)
    torch.testing.assert_close(result.coverage, torch.tensor([0.25, 0.25]))
    torch.testing.assert_close(result.view, result.coverage)
    assert bool((result.effective <= 0.25).all()) and bool((result.effective > 0.1).all())


def test_reach_equals_a_loop_over_views():
    encoder, views = small(), bank(Compose([Affine(degrees=30, scale=(1.2, 2.0))]), 12, seed=0, purpose="test")
    anchors = encoder(PICTURES.flip(3))
    result = reach(CountedEncoder(encoder), PICTURES, anchors, views, 5)
    for i, picture in enumerate(PICTURES):
        gradients = []
        for u in views.u[:VIEWS]:
            leaf = picture[None].clone().requires_grad_()
            features = encoder(views.transforms(leaf, u[None]))[0]
            value = (features * anchors[i]).sum() / features.detach().norm() / anchors[i].norm()
            gradients.append(torch.autograd.grad(value, leaf)[0][0])
        gradients = torch.stack(gradients).double()
        weights = gradients.square().sum(1).mean(0).sqrt()
        torch.testing.assert_close(result.sensitivity[i], weights, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(float(result.coverage[i]), coverage(weights))
        torch.testing.assert_close(float(result.effective[i]), effective(weights), rtol=1e-4, atol=0)
    assert bool((result.view < result.coverage).all())  # an enlarged view shows a part of the picture


def test_random_defences_and_hashes_have_a_reach():
    for encoder in (Stochastic(Defended(untrained().eval(), [SensorNoise((0.01, 0.1))])), Phash()):
        views = bank(randomised(Compose([Affine(degrees=10)]), encoder), 2, seed=0, purpose="test")
        assert bool(encoder_draws(views.transforms, views.u)) == isinstance(encoder, Stochastic)
        with torch.no_grad():
            anchors = encoder(PICTURES)
        result = reach(CountedEncoder(encoder), PICTURES, anchors, views, 8)
        assert bool(result.sensitivity.isfinite().all()) and bool((result.coverage > 0.5).all())
        fixed = Bank(Compose([Affine(degrees=10)]), views.u[:, :5])  # without the draws of the encoder
        without_draws = reach(CountedEncoder(encoder), PICTURES, anchors, fixed, 8)
        assert torch.equal(without_draws.sensitivity, result.sensitivity) == isinstance(encoder, Phash)


def test_the_value_equals_the_cosine_and_has_a_gradient_at_its_maximum():
    anchors = NET(WIDE)
    counter = CountedEncoder(NET)
    for pictures in (WIDE, WIDE.flip(2)):
        expected = F.cosine_similarity(NET(pictures), anchors)
        torch.testing.assert_close(counter.slope_values(pictures, anchors), expected)
        torch.testing.assert_close(counter.likeness(pictures, anchors), expected)
    leaf = WIDE.clone().requires_grad_()
    (flat,) = torch.autograd.grad(F.cosine_similarity(NET(leaf), anchors).sum(), leaf)
    (slope,) = counter.gradients(counter.slope_values(leaf, anchors), [leaf])
    torch.testing.assert_close(saliency(slope), sum(slope[:, c].abs() for c in range(3)))
    assert float(flat.norm()) < 1e-9 < 1e-2 < float(slope.norm())


def test_a_hash_is_compared_by_its_bits_and_has_a_gradient():
    encoder, pictures = Phash(), smooth()
    anchors, other = encoder(pictures), pictures.flip(3)
    counter = CountedEncoder(encoder)
    bit_errors = (bits(encoder(other)) != bits(anchors)).sum(1)
    torch.testing.assert_close(counter.likeness(other, anchors), 1 - 2 * bit_errors / 64)
    leaf = other.clone().requires_grad_()
    (gradient,) = counter.gradients(counter.slope_values(leaf, anchors), [leaf])
    assert bool(gradient.isfinite().all()) and bool(gradient.any())


class PoolNetwork(nn.Module):
    """A convolution, the mean over positions, a linear layer."""

    def __init__(self):
        super().__init__()
        self.maps, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, 6, bias=False)

    def forward(self, images):
        return self.head(F.relu(self.maps(images)).mean((2, 3)))


class Block(nn.Module):
    """Full attention with a residual."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.value, self.inner = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, 3 * width)

    def forward(self, tokens):
        at = self.norm(tokens)
        value, inner = self.value(at), self.inner(at)
        return tokens + (inner @ inner.transpose(1, 2)).softmax(2) @ value


class Tokens(nn.Module):
    """A transformer that returns its class token, or the mean of the others."""

    def __init__(self, cls, prefix=2):
        super().__init__()
        self.cls, self.patch = cls, nn.Conv2d(3, 8, 8, 8)
        self.first = nn.Parameter(torch.randn(1, prefix, 8))
        self.blocks = nn.Sequential(Block(8), Block(8))

    def forward(self, images):
        patches = self.patch(images).flatten(2).transpose(1, 2)
        tokens = self.blocks(torch.cat([self.first.expand(len(images), -1, -1), patches], 1))
        return tokens[:, 0] if self.cls else tokens[:, self.first.shape[1] :].mean(1)


def build(kind, *args):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(*args).eval().requires_grad_(False)


def test_grad_cam_equals_a_calculation_by_hand():
    network = build(PoolNetwork)
    maps, anchors = F.relu(network.maps(PICTURES)), torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    _, cam = attribution(CountedEncoder(network), PICTURES, anchors, "maps")
    for i in range(2):
        # The slope at the pooled maps, shared equally by the positions where the ReLU is open.
        length = (network.head.weight @ maps[i].mean((1, 2))).norm()
        slope = anchors[i] / anchors[i].norm() @ network.head.weight / length / maps[i, 0].numel()
        maps_before_relu = network.maps(PICTURES)[i]
        weights = slope * (maps_before_relu > 0).float().mean((1, 2))
        torch.testing.assert_close(cam[i], (weights[:, None, None] * maps_before_relu).sum(0).relu())


def layer(network, size=(32, 32), gain=1.0):
    pictures = gain * torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    return spatial_layer(CountedEncoder(network), pictures, network(pictures))


def test_the_layer_is_the_last_with_positions():
    assert layer(build(PoolNetwork)) == "maps"
    assert layer(load_encoder(), (96, 96)) == "stages"
    assert layer(build(nn.Sequential, nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())) == "0"
    assert layer(build(Tokens, False)) == "blocks"


def test_after_the_last_attention_only_the_class_token_counts():
    name = layer(build(Tokens, True))
    assert name == "blocks.1.value"  # neither the block, whose patches are unused, nor `inner`, which is wider


def test_a_hash_has_no_layer():
    assert layer(Phash()) is None
    assert layer(Defended(Phash(), [Jpeg(75)])) is None
    assert attribution(CountedEncoder(Phash()), PICTURES, Phash()(PICTURES.flip(3)), None)[1] is None


def test_channels_may_come_last():
    maps = torch.rand(2, 5, 7, 6)
    assert torch.equal(places(maps, (70, 60)), maps)
    assert torch.equal(places(maps.movedim(1, 3), (70, 60)), maps)


@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
def test_tokens_are_laid_out_row_by_row(prefix):
    maps = torch.rand(2, 3, 7, 7)
    tokens = torch.cat([torch.zeros(2, prefix, 3), maps.flatten(2).transpose(1, 2)], 1)
    assert torch.equal(places(tokens, (70, 70)), maps)


def test_a_change_in_place_does_not_reach_the_recorded_output():
    maps = nn.Conv2d(3, 4, 3)
    networks = [build(nn.Sequential, maps, nn.ReLU(inplace), nn.Flatten()) for inplace in (True, False)]
    anchors = networks[1](PICTURES.flip(3))
    in_place, in_copy = (attribution(CountedEncoder(network), PICTURES, anchors, "0") for network in networks)
    torch.testing.assert_close(in_place, in_copy)


def test_no_hook_remains():
    network = build(PoolNetwork)
    layer(network)
    attribution(CountedEncoder(network), PICTURES, network(PICTURES), "maps")
    assert not any(module._forward_hooks for module in network.modules())


def test_without_a_crop_a_map_lies_over_the_whole_picture():
    coarse = torch.rand(1, 4, 4)
    expected = F.interpolate(coarse[:, None], (16, 24), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(on_picture(coarse, small(), (16, 24)), expected)


@pytest.mark.parametrize(("size", "crop"), [((40, 60), 20), ((60, 40), 28), ((40, 40), 40)])
def test_a_map_is_zero_outside_the_crop_and_aligned_inside(size, crop):
    spec = Preprocess(40, "pil_bilinear", (0.5,) * 3, (0.5,) * 3, fit="cover", crop=(crop, crop))
    encoder = with_preprocess(nn.Flatten(), spec)
    placed_map = on_picture(torch.ones(1, 5, 5), encoder, size)
    picture = torch.rand(1, 3, *size, requires_grad=True)
    (gradient,) = torch.autograd.grad(spec(picture).sum(), picture)
    assert torch.equal(placed_map[0] > 0, (gradient != 0).all(1)[0])


CLEAN = tiles(32).spread(3).images
STRIPES = 0.05 * torch.tensor([1.0, -1.0]).repeat(16).expand_as(CLEAN)
ATTACKED_ARMS = {"no_eot": (CLEAN + STRIPES).clamp(0, 1), "eot": (CLEAN + STRIPES.mT).clamp(0, 1)}
SAMPLE = Sample(torch.arange(3), ("a", "b", "c"), ("one", "two", "one"))
POCKET = untrained().eval().requires_grad_(False)


def views_for(encoder):
    return bank(randomised(Compose([Affine(degrees=10)]), encoder), 16, seed=0, purpose="test")


def explanation_for(encoder, **options):
    with torch.no_grad():
        anchors = encoder(CLEAN)
    return explain(encoder, CLEAN, ATTACKED_ARMS, anchors, views_for(encoder), **options)


def plain(explanations):
    """The figures for metrics.json."""
    content = explanation_summary(explanations.rows(SAMPLE))
    return json.loads(json.dumps(content, allow_nan=False))


@pytest.mark.slow
def test_equal_seeds_give_bit_identical_numbers():
    assert plain(explanation_for(POCKET)) == plain(explanation_for(POCKET))


@pytest.mark.slow
def test_every_pass_is_counted():
    passes, encoder = [], untrained().eval()
    encoder.register_forward_pre_hook(lambda _, images: passes.append(len(images[0])))
    result = explanation_for(encoder)
    assert result.forward == sum(passes) - len(CLEAN)  # the anchors are not its own
    by_arm = 3 * 2  # maps, likeness
    assert result.forward == 4 + 3 * by_arm + 3 * VIEWS
    assert result.backward == 2 + 3 * 3 + 3 * VIEWS
    assert result.seconds > 0
    for arm, pictures in {"clean": CLEAN, **ATTACKED_ARMS}.items():
        cosine = torch.cosine_similarity(encoder(pictures), encoder(CLEAN))
        torch.testing.assert_close(result.arms[arm].likeness, cosine, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    [Phash(), Defended(POCKET, [Jpeg((50, 90))]), Stochastic(Defended(POCKET, [SensorNoise((0.01, 0.1))]))],
    ids=["hash", "defended", "stochastic"],
)
def test_hashes_and_defended_encoders_are_explained(encoder):
    result = explanation_for(encoder)
    assert bool(result.arms["eot"].gradient.isfinite().all())
    assert result.layer == (None if isinstance(encoder, Phash) else "stages")
    assert [text.partition(":")[0] for text in result.missing] == (["Grad-CAM"] if result.layer is None else [])
    assert (result.arms["eot"].cam is None) == (result.layer is None)
    assert set(plain(result)["likeness"]) == {"clean", "no_eot", "eot"}


@pytest.mark.slow
def test_without_a_gradient_the_likeness_is_left(tmp_path):
    result = explanation_for(Cut())
    assert result.arms["eot"].gradient is None and len(result.missing) == 2
    content = plain(result)
    assert (content["coverage"], content["dead"]) == (None, None)
    assert result.rows(SAMPLE)[0]["coverage"] is None
    draw_explanations(tmp_path / "explanations.png", result)
