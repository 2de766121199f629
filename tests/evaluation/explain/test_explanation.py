"""Whole explanations: their numbers, their cost, and encoders for which some maps do not exist."""

import json

import pytest
import torch

from attacks import bank
from attacks.data.gallery import tiles
from attacks.encoders import Defended, Phash, Stochastic, untrained
from attacks.encoders.randomness import randomised
from attacks.evaluation.clusters import Sample
from attacks.evaluation.explain.explanation import explain, explanation_summary
from attacks.evaluation.explain.gradients import VIEWS
from attacks.report.panels import draw_explanations
from tests.evaluation.explain.test_gradients import Cut
from transforms import Affine, Compose, Jpeg
from transforms.camera import SensorNoise

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


@pytest.fixture(scope="module")
def explanations():
    return explanation_for(POCKET)


def plain(explanations):
    """The figures for metrics.json."""
    content = explanation_summary(explanations.rows(SAMPLE))
    return json.loads(json.dumps(content, allow_nan=False))


@pytest.mark.slow
def test_equal_seeds_give_bit_identical_numbers(explanations):
    assert plain(explanation_for(POCKET)) == plain(explanations)


def test_the_likeness_is_the_cosine(explanations):
    for arm, pictures in {"clean": CLEAN, **ATTACKED_ARMS}.items():
        cosine = torch.cosine_similarity(POCKET(pictures), POCKET(CLEAN))
        torch.testing.assert_close(explanations.arms[arm].likeness, cosine, rtol=0, atol=1e-5)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoder",
    [
        Phash(),
        Defended(POCKET, [Jpeg((50, 90))]),
        Stochastic(Defended(POCKET, [SensorNoise((0.01, 0.1))])),
    ],
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
