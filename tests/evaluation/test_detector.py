"""Encoders with a detector: their limits, what is fooled and accepted, and the price of a score in an attack."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch

from attacks import Away, bank
from attacks.encoders import Panel, Stochastic, randomised
from attacks.encoders.panel import ScoredEncoder
from attacks.encoders.passes import CountedCalls, passes_of
from attacks.encoders.rules import ViewConsistency
from attacks.evaluation.detection import score_limits
from attacks.evaluation.per_image import COLUMNS, DETECTION, per_image_rows
from attacks.evaluation.scores import Right, evaluate
from attacks.objectives import Evasion
from tests.helpers.slopes import assert_slope
from tests.helpers.small import small, smooth
from transforms import Affine, Compose
from transforms.camera import SensorNoise
from transforms.geometry import Crop

STAGES = [Crop((0.6, 1.0)), SensorNoise((0.02, 0.02))]
ACCEPTING, FLAGGING = -1.1, 1.1  # no cosine is beyond


def detector():
    return Panel(small().double(), ViewConsistency(), STAGES, views=3)


def score_of(panel, pictures, draws):
    return panel.rule.score(panel.features(pictures, draws))


def detector_case(limit=None):
    """The encoder, the pictures, the bank, and their scores with a limit."""
    encoder, images = detector(), smooth().double()
    views = bank(randomised(Compose([Affine(degrees=20)]), encoder), 16, seed=0, purpose="evaluate")
    views = views._replace(u=views.u.double())
    gallery = torch.cat([encoder(images), encoder(images.flip(-1)), encoder(1 - images)])
    limits = None if limit is None else torch.full((2,), limit)
    arms = {"clean": images, "eot": 0.4 * images + 0.6 * images.flip(0)}
    right = Right(torch.arange(2), limits=limits)
    scores = {
        arm: evaluate(pictures, gallery[:2], gallery, encoder=encoder, bank=views, chunk=5, right=right)
        for arm, pictures in arms.items()
    }
    return encoder, arms, views, scores


def rows_of(scores):
    success = {arm: column.nearest != torch.arange(2)[:, None] for arm, column in scores.items()}
    worst = {arm: column.cosine.amax(1) for arm, column in scores.items()}
    pictures = {"picture": ["a", "b"], "cluster": ["a", "b"], "identity": ["", ""]}
    return per_image_rows(
        {"same": scores}, {"same": success}, {"same": worst}, pictures=pictures, steps={}, thresholds={}
    )


def test_a_score_comes_with_the_features_from_the_same_passes():
    encoder, pictures, draws = detector(), smooth().double(), torch.rand(2, 1)
    counter = CountedCalls(Stochastic(encoder))
    answer = ScoredEncoder(counter)(pictures, draws=draws)
    assert torch.equal(answer["features"], encoder(pictures, draws))
    assert torch.equal(answer["score"][:, 0], score_of(encoder, pictures, draws))
    assert counter.count.forward == 2 * 4 and passes_of(ScoredEncoder(counter)).forward == 4
    assert counter.encoder.false_alarms == 0.05


def test_a_view_is_rated_by_its_score_and_the_limit_of_its_picture():
    encoder, arms, views, scores = detector_case(0.985)
    for arm, pictures in arms.items():
        for j, u in enumerate(views.u):
            rows = u.expand(2, -1)
            score = score_of(encoder, views.transforms(pictures, rows), rows[:, -1:])
            torch.testing.assert_close(scores[arm].detector[:, j], score - 0.985, rtol=0, atol=1e-6)
    rows, arm = rows_of(scores), scores["eot"]
    hits = (arm.nearest != torch.arange(2)[:, None]).numpy()
    for i, row in enumerate(rows[2:]):
        quiet = arm.detector[i].numpy() >= 0
        assert (row["fooled_accepted"], row["flagged"]) == (np.mean(hits[i] & quiet), np.mean(~quiet))
    assert 0 < np.mean([row["flagged"] for row in rows]) < 1


@pytest.mark.parametrize("limit", [ACCEPTING, FLAGGING])
def test_a_detector_that_accepts_all_or_nothing_changes_no_other_number(limit):
    plain, rows = rows_of(detector_case()[3]), rows_of(detector_case(limit)[3])
    columns = [name for name in COLUMNS if name not in DETECTION]
    assert [[row[name] for name in columns] for row in rows] == [[row[name] for name in columns] for row in plain]
    assert all(row["fooled_accepted"] is None and row["flagged"] is None for row in plain)
    assert any(row["success"] for row in rows)
    for row in rows:
        expected = (row["success"], 0.0) if limit == ACCEPTING else (0.0, 1.0)
        assert (row["fooled_accepted"], row["flagged"]) == expected


def uniform_scores(values, clusters, share):
    """The limits of pictures whose score is their grey level."""
    images = torch.as_tensor(values)[:, None, None, None].expand(-1, 3, 8, 8)
    pictures = type("Pictures", (), {"__len__": lambda _: len(images)})()
    pictures.clusters, pictures.ranges = clusters, lambda count: [range(count // 2), range(count // 2, count)]
    pictures.only = lambda rows: SimpleNamespace(images=images[list(rows)])
    views = bank(Compose([]), 1, seed=0, purpose="detector")

    def encoder(pixels, with_score):
        return {"features": pixels.flatten(1), "score": pixels.mean((1, 2, 3))[:, None]}

    return score_limits(pictures, encoder, views, share, chunk=7)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_the_share_of_false_alarms_is_as_stated(share):
    """How many of m new scores lie below the k-th lowest of n has a beta-binomial distribution."""
    generator, n, m = np.random.default_rng(0), 2000, 2000
    first, new = generator.random(n + 1), generator.random(m)
    limit = float(uniform_scores(first, list(map(str, range(n + 1))), share)[0])
    k = int(share * (n + 1))
    assert limit == pytest.approx(np.sort(first[1:])[k - 1], abs=1e-6)
    low, high = scipy.stats.betabinom(m, k, n + 1 - k).interval(1 - 1e-6)
    assert low <= (new < limit).sum() <= high and high < 2 * share * m


def test_a_limit_does_not_depend_on_its_own_cluster():
    values, clusters = np.linspace(0.1, 0.9, 9), list("aaabbbccc")
    limits, rest = (uniform_scores(row, clusters, 0.4) for row in (values, np.r_[[0.5, 0.6, 0.7], values[3:]]))
    assert torch.equal(limits[:3], rest[:3]) and not torch.equal(limits[3:], rest[3:])
    assert uniform_scores(values, ["a"] * 9, 0.4) is None


@pytest.mark.parametrize(("objective", "limit"), [(Away(), 0.5), (Away("l2"), 1.0)])
def test_the_price_is_its_formula_and_its_gradient_that_of_differences(objective, limit):
    encoder, pictures, draws = ScoredEncoder(detector()), smooth().double(), torch.rand(2, 1)
    anchor = {"features": encoder.encoder(1 - pictures), "limit": torch.full((2,), limit, dtype=torch.float64)}

    def loss(images, price=20.0):
        return Evasion(objective, price, margin=0.1)(encoder(images, draws=draws), anchor)

    missing = (limit + 0.1 - score_of(encoder.encoder, pictures, draws)).clamp(min=0)
    plain = objective(encoder.encoder(pictures, draws), anchor["features"])
    expected = [value if value > 0 else value / (1 - value) for value in plain.tolist()]
    torch.testing.assert_close(loss(pictures), torch.tensor(expected).double() + 20 * missing)
    assert bool((missing > 0).all()) == bool((plain < 0).all()) == (limit == 1.0)
    assert_slope(loss, pictures)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Evasion(Away(), price=-1.0), "`price` must be at least 0 and finite; got -1"),
        (lambda: Panel(small(), ViewConsistency(false_alarms=1.0), STAGES), "`false_alarms` must lie in.*got 1"),
        (
            lambda: Panel(small(), Wide(), STAGES)(smooth(), with_score=True),
            r"`score` of `rule` must be \(2,\).*\(2, 8\)",
        ),
    ],
)
def test_what_is_no_detector_or_price_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


class Wide(ViewConsistency):
    """A score a view."""

    def score(self, features):
        return features[:, 1:, 0]
