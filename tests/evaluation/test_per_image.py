"""Rows and tables against numpy and scikit-learn, from the embeddings. `tests/experiment/test_recomputed.py`
recomputes the tables of a run from its files."""

import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attacks.evaluation.judge import resisting
from attacks.evaluation.per_image import arms_table, per_image_rows, primary
from attacks.evaluation.retrieval import Rows, best, impostors, search, thresholds, votes
from attacks.evaluation.scores import Scores
from attacks.inference.bounded import interval, median, quantile, rate

#: Of 12 pictures: 2, 1, 3, 1, 4 and 1 of a kind.
CLUSTERS = list("aabcccdeeeef")
ARMS = {"clean": 1.0, "noise": 1.5, "no_eot": 3.0, "eot": 4.0}
IDENTITY = torch.arange(60) // 4


def view_scores(gallery, views, count, goal):
    """Scores of views (N,V,D) of the first rows of a gallery."""
    result, rows = [], Rows((gallery,))
    for row in range(count):
        unit = F.normalize(views[row].double(), dim=1)
        similarity = (unit @ gallery.double().T).float()
        marks = [best(unit, rows, (IDENTITY[row] == IDENTITY).nonzero()[:, 0]), best(unit, rows, torch.tensor([59]))]
        nearest, (rank, goal_rank) = search(unit, rows, 6, marks)
        vote = votes(nearest, torch.full((len(unit),), row), IDENTITY)
        goals = (goal_rank, similarity[:, 59]) if goal else (None, None)
        result.append((similarity[:, row], nearest[:, 0], rank, vote, *goals))
    return Scores(*(None if column[0] is None else torch.stack(column) for column in zip(*result, strict=True)))


def a_run(count=12, size=16, goal=False):
    """A run of all arms on two banks: its parts and its rows."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(15, 8, generator=generator)[IDENTITY]
    gallery = F.normalize(centres + 0.3 * torch.randn(60, 8, generator=generator), dim=1)
    noise = torch.randn(2, count, size, 8, generator=generator)
    level = 0.3 * (1 + torch.rand(count, 1, 1, generator=generator))
    scores, success, worst = {}, {}, {}
    for bank, bank_noise in zip(("same", "wide"), noise, strict=True):
        views = {arm: gallery[:count, None] + factor * level * bank_noise for arm, factor in ARMS.items()}
        scores[bank] = {arm: view_scores(gallery, row, count, goal) for arm, row in views.items()}
        success[bank] = {arm: IDENTITY[row.nearest] != IDENTITY[:count, None] for arm, row in scores[bank].items()}
        worst[bank] = {arm: row.cosine.amax(1) / 2 + 0.5 for arm, row in scores[bank].items()}
    names, labels = [f'{i}, "{i}".png' for i in range(count)], [str(int(row)) for row in IDENTITY[:count]]
    limits = thresholds(impostors(gallery, IDENTITY))
    pictures, steps = {"picture": names, "cluster": CLUSTERS, "identity": labels}, {"eot": torch.arange(count)}
    rows = per_image_rows(scores, success, worst, pictures=pictures, steps=steps, thresholds=limits)
    run = {"gallery": gallery, "scores": scores, "success": success, "worst": worst, "names": names}
    return SimpleNamespace(**run, limits=limits, rows=rows)


@pytest.fixture(scope="module")
def result():
    return a_run()


def column(run, bank, arm, name):
    return np.array([row[name] for row in run.rows if (row["bank"], row["arm"]) == (bank, arm)])


def test_every_bank_arm_and_picture_has_a_row(result):
    assert len(result.rows) == 2 * 4 * 12 == len({(row["bank"], row["arm"], row["picture"]) for row in result.rows})
    assert list(result.rows[0])[:6] == ["bank", "arm", "picture", "cluster", "identity", "views"]
    assert {row["views"] for row in result.rows} == {16}


@pytest.mark.parametrize("bank", ["same", "wide"])
@pytest.mark.parametrize("arm", ARMS)
def test_rows_equal_numpy(result, bank, arm):
    scores = result.scores[bank]
    columns = scores[arm].cosine, scores["clean"].cosine, scores[arm].rank
    cosine, clean, rank = (entry.double().numpy() for entry in columns)
    expected = {
        "cosine": cosine.mean(1),
        "shift": (cosine - clean).mean(1),
        "cosine_p10": np.quantile(cosine, 0.1, axis=1),
        "worst_cosine": result.worst[bank][arm].double().numpy(),
        "median_rank": [statistics.median_low(entry) for entry in rank.tolist()],
        "success": result.success[bank][arm].numpy().mean(1),
        "mrr": (1 / rank).mean(1),
        **{f"recall_at_{k}": (rank <= k).mean(1) for k in (1, 5, 10)},
        "knn": scores[arm].vote.numpy().mean(1),
    }
    clean_hits, hits = (result.success[bank][entry].numpy() for entry in ("clean", arm))
    expected["survived"] = (~clean_hits).sum(1)
    with np.errstate(invalid="ignore"):
        shares = (hits & ~clean_hits).sum(1) / (~clean_hits).sum(1)
    assert column(result, bank, arm, "success_survived").tolist() == [
        None if np.isnan(x) else pytest.approx(x) for x in shares
    ]
    assert column(result, bank, arm, "step").tolist() == (list(range(12)) if arm == "eot" else [None] * 12)
    for name, values in expected.items():
        np.testing.assert_allclose(column(result, bank, arm, name), values, atol=1e-12, err_msg=name)


def test_missing_measures_stay_empty(result):
    scores = result.scores.items()
    bare = {bank: {arm: entry._replace(vote=None) for arm, entry in arms.items()} for bank, arms in scores}
    pictures = {"picture": result.names, "cluster": CLUSTERS, "identity": [""] * 12}
    rows = per_image_rows(bare, result.success, result.worst, pictures=pictures, steps={}, thresholds={})
    table = arms_table(rows)["same"]["eot"]
    assert table["knn"] is table["tar"] is table["goal_rank"] is table["goal_cosine"] is None
    assert table["success"] == arms_table(result.rows)["same"]["eot"]["success"]
    assert not any(name.startswith("tar") for name in rows[0])


def test_the_worst_view_is_the_one_least_affected():
    run = a_run(goal=True)
    scores = run.scores["same"]["eot"]
    worst_views = [entry.index(min(entry)) for entry in scores.goal_cosine.tolist()]
    assert resisting(scores).tolist() == [scores.cosine[i, view].item() for i, view in enumerate(worst_views)]
    bare = scores._replace(goal_cosine=None)
    assert resisting(bare).tolist() == [max(entry) for entry in scores.cosine.tolist()]


def test_a_single_picture_has_intervals_over_its_views():
    run = a_run(count=1, size=40, goal=True)
    views = {bank: (arms, run.success[bank]) for bank, arms in run.scores.items()}
    by_cluster_table, table = arms_table(run.rows), arms_table(run.rows, views=views)
    for bank in ("same", "wide"):
        scores, result = run.scores[bank]["eot"], table[bank]["eot"]
        assert result["cosine"] == interval(scores.cosine, -1)._asdict()
        assert result["cosine"]["low"] < result["cosine"]["high"]
        assert result["shift"] == interval(scores.cosine.double() - run.scores[bank]["clean"].cosine, -2, 2)._asdict()
        assert result["success"] == rate(run.success[bank]["eot"].double().mean(1), 40)._asdict()
        assert result["mrr"] == interval(1 / scores.rank.double())._asdict()
        assert result["median_rank"] == median(scores.rank[0])._asdict()
        assert result["goal_rank"] == median(scores.goal_rank[0])._asdict()
        assert result["cosine_p10"] == quantile(scores.cosine[0].double(), 0.1)._asdict()
        for name, cell in by_cluster_table[bank]["eot"].items():
            if name != "tar" and cell is not None:
                assert cell["mean"] == pytest.approx(result[name]["mean"], abs=1e-9), name


ARM_NAMES = ("clean", "noise", "no_eot", "one_view", "eot")


def test_the_primary_comparison_is_with_the_strongest_baseline(result):
    others = {"noise": "no_eot", "no_eot": "noise"}
    swapped = [row | {"arm": others.get(row["arm"], row["arm"])} for row in result.rows]
    assert [primary(rows, "success")["against"] for rows in (result.rows, swapped)] == ["no_eot", "noise"]


@pytest.mark.slow
def test_choosing_the_strongest_baseline_keeps_the_level():
    # Two baselines as strong as EOT: choosing the strongest must not reject more than the level.
    rejections = 0
    for seed in range(400):
        draw = np.random.default_rng(seed)
        rows = [
            {"bank": "same", "arm": arm, "picture": str(i), "cluster": str(i), "views": 64, "success": x, "cosine": 0}
            for arm in ARM_NAMES
            for i, x in enumerate(draw.uniform(0, 1, 8))
        ]
        rejections += primary(rows, "success")["p"] < 0.05
    assert rejections / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5
