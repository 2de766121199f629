"""Tasks with classes: logits, texts and scores, against arithmetic and known optima."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import bank, robustness
from attacks.data.images import save_image
from attacks.encoders import ScoreEncoder
from attacks.evaluation.classes import Classes, classify, logit_classes
from attacks.evaluation.judge import Judge
from attacks.objectives import DLR, ByText, CrossEntropy, InfoNCE, Margin
from attacks.schema.composition import compose
from attacks.study.assembly import build
from transforms import Brightness, Compose

LOGITS = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(7, (40,), generator=torch.Generator().manual_seed(1))


def linear(*rows):
    """The logits w . (mean red, green, blue) of some w."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, len(rows), bias=False)).eval()
    network[2].weight.data = torch.tensor(rows)
    return network.requires_grad_(False)


CHANNELS = linear((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0), (0, 0, -1.0))
#: Pictures of one colour in steps of 1/255: red leads green by 8, and green leads red by 8.
LEADS = {"red": (120, 112, 60), "green": (112, 120, 60)}
SIDES = ("above", "below")  # of 116/255 in red


def one_colour(steps):
    return (torch.tensor(steps) / 255)[:, None, None].expand(3, 16, 16)


def test_the_rank_of_a_class_is_that_of_its_logit():
    """Over views of the pictures, the order of one-hot cosines is the order of the logits."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 9)).eval().requires_grad_(False)
    images, truth = torch.rand(6, 3, 4, 4), torch.randint(9, (6,))
    views = bank(Compose([Brightness(0.5)]), 8, seed=0, purpose="evaluate")
    classes = logit_classes(None, 9)
    scores = Judge(encoder, encoder(images), classes.rows, classes, truth)(images, torch.arange(6), views)
    logits = views.features(images, encoder, 64)
    right = logits.gather(2, truth[:, None, None].expand(-1, 8, 1))
    assert torch.equal(scores.nearest, logits.argmax(2)) and scores.rank.unique().numel() > 3
    assert torch.equal(scores.rank, 1 + (logits > right).sum(2))


@pytest.mark.parametrize("threshold", [-0.4, 0.3])
def test_the_score_of_a_view_is_the_answer_of_the_encoder(threshold):
    images, truth = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1])
    views = bank(Compose([Brightness(0.5)]), 8, seed=0, purpose="evaluate")
    encoder = ScoreEncoder(CHANNELS, threshold=threshold, column=1)
    classes = Classes(SIDES[::-1], torch.eye(2), logits=True, threshold=threshold)
    scores = Judge(encoder, encoder(images), classes.rows, classes, truth)(images, torch.arange(3), views)
    answers = views.features(images, CHANNELS, 64)[..., 1]
    assert torch.allclose(scores.score.to(answers), answers, atol=1e-6)
    assert torch.equal(scores.nearest == 1, answers > threshold)


def test_margin_is_the_numerator_of_dlr_and_reaches_zero_where_the_class_changes():
    top = LOGITS.topk(3, dim=1).values
    lead = Margin()(LOGITS, LABELS)
    third = DLR()(LOGITS, LABELS) * (top[:, 0] - top[:, 2])
    assert torch.allclose(lead, third, atol=1e-6) and torch.equal(lead > 0, LOGITS.argmax(1) == LABELS)
    assert torch.equal(Margin(targeted=True)(LOGITS, LABELS) < 0, LOGITS.argmax(1) == LABELS)


def test_texts_are_logits_by_a_scaled_cosine():
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(3))
    expected = InfoNCE(rows, temperature=0.01)(features, LABELS)
    assert torch.allclose(ByText(CrossEntropy(), rows)(features, LABELS), expected, atol=1e-4)
    cosines = F.normalize(features, dim=1) @ F.normalize(rows, dim=1).T
    assert torch.equal(ByText(Margin(), rows)(features, LABELS) > 0, cosines.argmax(1) == LABELS)


def test_a_score_is_two_logits_whose_difference_and_direction_turn_with_it():
    encoder = ScoreEncoder(CHANNELS, threshold=0.45, column=1)
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    logits, above = encoder(images), CHANNELS(images)[:, 1] - 0.45
    assert torch.allclose(logits[:, 1] - logits[:, 0], 2 * above, atol=1e-6)
    assert torch.equal(logits.argmax(1) == 1, above > 0)
    (slope,) = torch.autograd.grad(F.cosine_similarity(logits[:4], logits[4:].detach()).sum(), images)
    assert bool((slope[:4, 1] != 0).any((1, 2)).all()) and not slope[4:].any()


@pytest.mark.parametrize("column", [None, 4])
def test_a_score_without_its_column_is_refused(column):
    with pytest.raises(ValueError, match=r"`column` must be 0\.\.3: which of the 4 numbers"):
        ScoreEncoder(CHANNELS, 0.5, column)(torch.rand(1, 3, 8, 8))


def test_labels_are_names_or_the_prediction():
    classes = logit_classes(None, 7)
    result, truth, notes = classify(classes, LOGITS, ["3", *[None] * 39])
    assert truth.tolist() == [3, *LOGITS[1:].argmax(1).tolist()]
    assert result.guessed == 39 and "39 pictures" in notes[0]
    with pytest.raises(ValueError, match="identity 'cat' of a picture is no class of the logits: '0' to '6'"):
        classify(classes, LOGITS[:1], ["cat"])


def metrics_of(tmp_path, words):
    """The run with and without a little more than the least change that succeeds, by arm eot."""
    for name, steps in zip(SIDES if words["task"] == "score" else LEADS, LEADS.values(), strict=True):
        (tmp_path / name).mkdir(exist_ok=True)
        save_image(tmp_path / name / f"{name}.png", one_colour(steps))
    (tmp_path / "names.txt").write_text("red\ngreen\nblue\nblack\n")
    values = {"preset": "smoke", "transforms": "identity", "data.size": 16, "attack.steps": 12, "sanity": "none"}
    values |= {"task.classes": str(tmp_path / "names.txt")} if words["task"] == "classification" else {}
    out = tmp_path / "run"
    robustness(CHANNELS, tmp_path, out=out, overwrite=True, **values | words)
    return json.loads((out / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("words", "change"),
    [
        pytest.param({"task": "classification"}, 4, marks=pytest.mark.slow),
        pytest.param({"task": "classification", "objective": "cross_entropy"}, 4, marks=pytest.mark.slow),
        pytest.param({"task": "classification", "objective": "dlr"}, 4, marks=pytest.mark.slow),
        # blue has 60 steps, and the highest rival falls from 120
        pytest.param({"task": "classification", "objective.target": "blue"}, 30, marks=pytest.mark.slow),
        pytest.param(
            {"task": "classification", "objective": "dlr", "objective.target": "blue"}, 30, marks=pytest.mark.slow
        ),
        ({"task": "score", "task.threshold": 116 / 255, "task.column": 0}, 4),
    ],
    ids=str,
)
def test_a_linear_classifier_falls_at_its_known_margin(tmp_path, capsys, words, change):
    """Within linf the least change is the lead divided by the 1-norm of the difference of two rows."""
    for eps, expected in ((change - 1.5, 0), (change + 1.5, 1)):
        metrics = metrics_of(tmp_path, {**words, "eps": f"{round(eps)}/255"})
        assert metrics["arms"]["clean"]["success"]["mean"] == 0 and metrics["files_right"] in (1, None)
        assert metrics["arms"]["eot"]["success"]["mean"] == expected


@pytest.mark.parametrize("layer", [nn.Softmax(1), nn.LogSoftmax(1)], ids=lambda layer: type(layer).__name__)
def test_probabilities_are_refused_where_embeddings_are_compared(layer):
    with pytest.raises(ValueError, match=r"probabilities, which sum to 1: say task=classification"):
        build(compose("smoke", ["data.size=32"]), nn.Sequential(CHANNELS, layer).eval())


def test_as_many_numbers_as_imagenet_has_classes_are_refused_but_for_a_layer_by_name():
    network = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 1000)).eval().requires_grad_(False)
    with pytest.raises(ValueError, match="1000 numbers, as many as a classifier of ImageNet has logits"):
        build(compose("smoke", ["data.size=32"]), network)
    assert build(compose("smoke", ["data.size=32", "encoder.features=[output]"]), network)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["objective=margin"], "`objective=margin` is a loss on logits, of task=classification or task=score"),
        (["task=score", "task.threshold=0", "objective=away"], "`objective` must be margin or cross_entropy"),
        (["task=score"], "`task.threshold` has no value"),
        (["task=score", "task.threshold=.inf"], "`task.threshold` must be a number"),
        (
            ["task=score", "task.threshold=0", "task.column=9"],
            r"`task.column` must be 0\.\.3|`column` must be 0\.\.3",
        ),
    ],
    ids=str,
)
def test_words_that_do_not_fit_a_task_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        build(compose("smoke", ["data.size=32", *words]), CHANNELS)
