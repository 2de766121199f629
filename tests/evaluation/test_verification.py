"""Verification with a threshold, and views that a black box gives no answer for."""

import importlib.util
import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from attacks import Away, Linf, Problem, Toward
from attacks.encoders.black_box.asked import BlackBox, Ledger, function
from attacks.eot.bank import Bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.judge import Judge
from attacks.evaluation.scores import Acceptance, Scores
from attacks.experiment import drawings
from attacks.experiment.results import table_text
from tests.helpers import report_pages
from transforms import Compose
from transforms.colour import Gain

COUNT, VIEWS = 5, 4
BANK = Bank(Compose([Gain((0.5, 1.5))]), torch.rand(VIEWS, 1, generator=torch.Generator().manual_seed(1)))


class Silent:
    """Answers with random features of the pixels, and nothing for pictures brighter than a level."""

    def __init__(self, level=256.0, blank=None):
        self.net, self.level, self.blank = np.random.default_rng(0).normal(size=(48, 6)) / 1500, level, blank

    def __call__(self, pixels):
        rows = (pixels.reshape(len(pixels), -1) - 127.0) @ self.net
        return [row if picture.mean() < self.level else self.blank for picture, row in zip(pixels, rows, strict=True)]


def a_case(seed, goal, level=256.0, **options):
    """A judge of random pictures, the views of their variants copies, and all embeddings as numpy sees them."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(COUNT, 3, 4, 4, generator=generator) / 4
    variants = (images + 0.4 * torch.rand(images.shape, generator=generator)).clamp(0, 1)
    encoder = BlackBox(Silent(level))
    anchors, known = encoder(images), Classes(tuple("abcde"), torch.eye(COUNT))
    targets = (torch.arange(COUNT) + 1) % COUNT if goal else None
    judge = Judge(encoder, anchors, anchors, known, torch.arange(COUNT), targets, **options)
    return judge, images, variants, anchors.double().numpy()


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["cosine", "l2"]), st.floats(0.05, 0.95))
@settings(max_examples=20, deadline=None)
def test_success_is_what_scipy_says_of_the_distances(seed, goal, metric, threshold):
    judge, _, variants, anchors = a_case(seed, goal, acceptance=Acceptance(threshold, metric))
    rows, centres = torch.arange(COUNT), np.roll(anchors, -1, 0) if goal else anchors
    scores = judge(variants, rows, BANK)
    features = BANK.features(variants, judge.encoder, 8).double().numpy()
    kind = "euclidean" if metric == "l2" else "cosine"
    values = np.stack(
        [cdist(views, centre[None], kind)[:, 0] for views, centre in zip(features, centres, strict=True)]
    )
    limit = threshold if metric == "l2" else 1 - threshold
    clear = np.abs(values - limit) > 1e-5
    np.testing.assert_array_equal(judge.success(scores, rows).numpy()[clear], (values <= limit)[clear] == goal)
    if metric == "l2":
        np.testing.assert_allclose(scores.distance.numpy(), values, atol=1e-5)
    else:
        assert scores.distance is None


@pytest.mark.parametrize("goal", [False, True])
@pytest.mark.parametrize(("metric", "sign"), [("cosine", 1), ("l2", -1)])
def test_success_is_monotone_in_the_threshold(goal, metric, sign):
    counts = []
    for threshold in np.linspace(0.02, 0.98, 9):
        judge, _, variants, _ = a_case(0, goal, acceptance=Acceptance(threshold, metric))
        counts.append(int(judge.success(judge(variants, torch.arange(COUNT), BANK), torch.arange(COUNT)).sum()))
    assert counts == sorted(counts, reverse=(sign > 0) == goal) and counts[0] != counts[-1]


@pytest.mark.parametrize(
    ("threshold", "metric"), [(1, "cosine"), (-1, "cosine"), (0, "l2"), (-0.5, "l2"), (0.5, "l1")]
)
def test_a_threshold_that_decides_nothing_is_refused(threshold, metric):
    with pytest.raises(ValueError, match=r"`threshold` must be|`metric` must be"):
        Acceptance(threshold, metric)


@pytest.mark.parametrize("goal", [False, True])
@pytest.mark.parametrize("acceptance", [None, Acceptance(0.5), Acceptance(0.5, "l2")])
def test_a_view_without_an_answer_is_no_success_and_has_the_scores_of_the_clean_picture(goal, acceptance):
    judge, _, variants, _ = a_case(3, goal, level=80, acceptance=acceptance)
    rows = torch.arange(COUNT)
    scores, loud = judge(variants, rows, BANK), a_case(3, goal, acceptance=acceptance)[0](variants, rows, BANK)
    silent = scores.no_answer
    assert 0 < int(silent.sum()) < silent.numel() and not loud.no_answer.any()
    success, expected = judge.success(scores, rows), judge.success(loud, rows)
    assert torch.equal(success, expected & ~silent)
    torch.testing.assert_close(scores.cosine[silent], torch.ones(int(silent.sum())))
    torch.testing.assert_close(scores.cosine[~silent], loud.cosine[~silent])
    shares = (success, ~success & ~silent, silent)  # each view is one of the three
    assert torch.equal(sum(share.int() for share in shares), torch.ones_like(silent, dtype=torch.int))


@pytest.mark.parametrize("objective", [Away(), Away("l2"), Toward(), Toward("l2")])
def test_a_search_gains_nothing_by_a_view_without_an_answer(objective):
    judge, images, variants, _ = a_case(3, False, level=80)
    anchor = judge.own if isinstance(objective, Away) else judge.own.roll(-1, 0)
    problem = Problem(images, anchor, judge.encoder, objective, Linf(1.0))
    rows, u = torch.arange(COUNT), BANK.u.repeat(COUNT, 1)
    losses = problem.losses(BANK.transforms, variants - images, rows, u).view(COUNT, -1)
    silent = judge(variants, rows, BANK).no_answer
    clean = objective(judge.own, anchor)[:, None].expand_as(losses)
    assert silent.any()
    torch.testing.assert_close(losses[silent], clean[silent])


@pytest.mark.parametrize("answer", ["vector", "scores", "same"])
def test_no_answer_is_null_in_the_ledger_and_read_back(tmp_path, answer):
    pictures = torch.stack([torch.full((3, 2, 2), level) for level in (0.0, 0.4, 0.8)])
    values = {"vector": [[1.0, 2.0], None, [np.nan, np.nan]], "scores": [[1.0, 2.0], None, [3.0, 1.0]]}
    table = values.get(answer, [1, None, 0])
    calls = []

    def ask(pixels):
        calls.append(len(pixels))
        return [table[int(picture.mean() // 90)] for picture in pixels]

    first = BlackBox(ask, answer=answer)
    with first.ledger.open(tmp_path / "q.jsonl"):
        rows = first(pictures)
        first.confirm()
    assert not rows[1].any() and rows[0].any() and (answer == "vector") == (not rows[2].any())
    assert '"answer": null' in (tmp_path / "q.jsonl").read_text()
    again = BlackBox(lambda _: pytest.fail("asked twice"), answer=answer)
    again.ledger = Ledger()
    again.ledger.read(tmp_path / "q.jsonl")
    assert torch.equal(again(pictures), rows) and torch.equal(again(pictures[[1]]), rows[[1]])


@pytest.mark.real
@pytest.mark.nightly
def test_the_face_of_the_astronaut_has_dlibs_embedding_and_a_wall_has_none():
    dlib, data = pytest.importorskip("dlib"), pytest.importorskip("skimage.data")
    models = importlib.util.find_spec("face_recognition_models")
    if models is None:
        pytest.skip("face_recognition_models is not installed")
    folder = Path(models.origin).parent / "models"
    picture = data.astronaut()
    (box,) = dlib.get_frontal_face_detector()(picture, 0)
    shape = dlib.shape_predictor(str(folder / "shape_predictor_5_face_landmarks.dat"))(picture, box)
    chip = dlib.get_face_chip(picture, shape, size=150, padding=0.25)
    network = dlib.face_recognition_model_v1(str(folder / "dlib_face_recognition_resnet_model_v1.dat"))
    expected = np.array(network.compute_face_descriptor(chip))
    encoder = function("scripts.benchmarks.dlib_face:face_vectors")
    pictures = (
        torch.from_numpy(np.stack([picture, picture[:, ::-1], np.full_like(picture, 90)])).permute(0, 3, 1, 2) / 255
    )
    rows = encoder(pictures).numpy()
    np.testing.assert_allclose(rows[0], expected, atol=1e-5)
    assert 0 < np.linalg.norm(rows[1] - rows[0]) < 0.6 < np.linalg.norm(rows[0]) and not rows[2].any()


@pytest.mark.parametrize("goal", [None, torch.tensor([1])])
def test_a_view_is_marked_by_the_threshold_of_a_verification_and_grey_without_an_answer(goal):
    acceptance = Acceptance(0.5)
    gallery = SimpleNamespace(same=torch.eq)
    bench = SimpleNamespace(study=SimpleNamespace(gallery=gallery, truth=torch.tensor([0]), goal=goal))
    bench.study.acceptance = acceptance
    for nearest, value, blank in itertools.product((0, 1), (0.4, 0.6), (False, True)):
        cosine, row = torch.tensor([[value]]), torch.tensor([[nearest]])
        scores = Scores(cosine, row, row + 1, goal_cosine=None if goal is None else cosine)
        scores = scores._replace(no_answer=torch.tensor([[True]]) if blank else None)
        succeeds = (value >= 0.5) == (goal is not None)
        expected = "#888888" if blank else "#c53030" if succeeds else "#2f855a"
        assert drawings._mark(bench, scores, 0)[1] == expected


@pytest.mark.parametrize("value", ["score", "distance"])
def test_the_short_table_has_the_value_of_the_task(value):
    content = report_pages.content()
    for row in content["arms"].values():
        row |= {value: row["cosine"], "no_answer": row["success"]}
    text = table_text(content)
    assert text.splitlines()[0].split() == ["arm", "success", value, "no", "answer", "chosen", "step"]
    assert "most resistant" not in text and "cosine" not in text
