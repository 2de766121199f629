"""Ranks and votes against a sorted list and scikit-learn; impostors against all pairs, thresholds against ROC."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from attacks.data.gallery import Pictures, on_shelf
from attacks.eot.bank import bank
from attacks.evaluation import retrieval
from attacks.evaluation.judge import Judge
from attacks.evaluation.per_image import per_image_rows
from attacks.evaluation.retrieval import Rows, best, impostors, search, thresholds, votes
from tests.helpers.wrong import refused
from transforms import Brightness, Compose


def crowd(seed, views=40, rows=12, levels=None):
    """Similarities, with many ties where there are few `levels`, and identities of three rows each."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(views, rows, generator=generator)
    if levels:
        similarity = (similarity * levels).round() / levels
    return similarity, torch.randperm(rows, generator=generator) // 3


@pytest.fixture(params=[1, 5, 2**13], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(retrieval, "ROWS", request.param)


def vote(similarity, identity, truth, k):
    nearest, _ = search(similarity.double(), Rows((torch.eye(len(identity)),)), k + 1)
    return votes(nearest, torch.full((len(similarity),), truth), identity)


def in_order(row):
    return np.argsort(-row.numpy(), kind="stable")


def gallery_of_twins(width, rows=300):
    """Rows of any length, each three times: every rank is a tie."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(rows // 3, width, generator=generator) * 3
    views = torch.randn(40, width, generator=generator)
    return rows.repeat(3, 1)[torch.randperm(3 * len(rows), generator=generator)], views


@pytest.mark.parametrize("width", [3, 64, 512])
def test_ranks_and_rows_equal_those_of_the_whole_matrix_in_numpy_with_ties(width):
    gallery, views = gallery_of_twins(width)
    unit = torch.nn.functional.normalize(views.double(), dim=1)
    wide = gallery.double().numpy()
    cosines = unit.numpy() @ (wide / np.linalg.norm(wide, axis=1, keepdims=True)).T
    cosines = torch.from_numpy(cosines.round(11))  # the copies are equal, and nothing else
    truth = torch.tensor([7, 100])
    rows = Rows((gallery[:101], gallery[101:]))
    nearest, (ranks,) = search(unit, rows, 6, [best(unit, rows, truth)])
    order = np.argsort(-cosines.numpy(), axis=1, kind="stable")
    assert np.array_equal(nearest.numpy(), order[:, :6])
    assert np.array_equal(ranks.numpy(), 1 + np.isin(order, truth.numpy()).argmax(1))


@pytest.mark.parametrize("k", [1, 3, 4, 99])
@pytest.mark.parametrize("levels", [None, 2])
def test_the_nearest_of_other_pictures_vote_and_the_nearer_identity_wins_a_tie(levels, k):
    ties = 0
    for seed in range(10):
        similarity, identity = crowd(seed, levels=levels)
        result = vote(similarity, identity, seed, k)
        for row, right in zip(similarity, result, strict=True):
            nearest = [int(identity[i]) for i in in_order(row) if i != seed][:k]
            counts = Counter(nearest)
            largest = max(counts.values())
            ties += sum(count == largest for count in counts.values()) > 1
            winner = next(name for name in nearest if counts[name] == largest)
            assert right == (winner == identity[seed])
    assert ties > 20 or k != 4


def test_a_gallery_without_the_picture_or_with_nan_is_refused():
    refused("NaN", search, torch.ones(1, 3).double(), Rows((torch.eye(3) / 0,)), 1)
    refused("one row", votes, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.zeros(1))


@pytest.mark.parametrize("with_names", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_thresholds_true_accepts_votes_and_ranks_follow_from_embeddings_and_identities(with_names, seed):
    """Against numpy, pair by pair: two rows of one identity, or of one cluster, are no impostors, and a picture whose
    identity has no other is in no measure of retrieval."""
    generator = np.random.default_rng(seed)
    people, clusters = generator.integers(0, 30, 60), generator.integers(0, 25, 60)
    images = torch.from_numpy(generator.integers(0, 256, (60, 3, 2, 2)) / 255).float()
    shelf = Pictures(tuple(map(str, range(60))), images, clusters=tuple(map(str, clusters))).shelf()
    gallery_rows = on_shelf(replace(shelf, labels=tuple(f"person {p}" if p and with_names else None for p in people)))
    encoder, queries, k = lambda x: x.flatten(1) - 0.5, torch.arange(20), 3
    rows = encoder(images)
    judge = Judge(encoder, rows[:20], rows, gallery_rows, queries, neighbours=k)
    views = bank(Compose([Brightness(0.3)]), 4, seed=seed, purpose="evaluate")
    scores, cosines = judge(images[:20], queries, views), judge.impostors()
    unit = rows.double().numpy() / np.linalg.norm(rows.double(), axis=1)[:, None]
    match = np.eye(60, dtype=bool)
    if with_names:
        match |= (people[:, None] == people) & (people > 0)
    expected = [
        unit[i] @ unit[j] for i in range(60) for j in range(i) if not match[i, j] and clusters[i] != clusters[j]
    ]
    np.testing.assert_allclose(np.sort(cosines), np.sort(expected), atol=1e-6)
    limits = thresholds(cosines, (0.01, 0.05))
    table = per_image_rows(
        {"same": {"clean": scores}},
        {"same": {"clean": judge.success(scores, queries)}},
        {"same": {"clean": scores.cosine.amax(1)}},
        pictures={"picture": gallery_rows.names[:20]},
        steps={},
        thresholds=limits,
        alone=gallery_rows.alone(queries),
    )
    for i, row in enumerate(table):
        features = encoder(views.transforms(images[[i] * 4], views.u)).double().numpy()
        alike = features / np.linalg.norm(features, axis=1)[:, None] @ unit.T
        candidates, votes, firsts = np.delete(np.arange(60), i), [], []
        for view in alike:
            near = candidates[np.argsort(-view[candidates])][:k]
            numbers = np.where(people[near] > 0, people[near], -near - 1) if with_names else -near - 1
            counts = [(-np.sum(numbers == number), place) for place, number in enumerate(numbers)]
            votes.append(match[i, near[min(counts)[1]]])
            firsts.append(1 + np.sum(view > view[match[i]].max()))
        assert row["success"] == np.mean([not match[i, view.argmax()] for view in alike])
        for far, limit in limits.items():
            assert limit == pytest.approx(np.sort(expected)[::-1][int(far * len(expected))], abs=1e-6)
            assert row[f"tar_{far:g}"] == np.mean(alike[:, i] >= limit)
        single = with_names and match[i].sum() == 1
        assert row["knn"] == (np.mean(votes) if with_names and not single else None)
        assert row["recall_at_1"] == (None if single else np.mean(np.array(firsts) == 1))
        assert row["mrr"] == (None if single else pytest.approx(np.mean(1 / np.array(firsts))))
    assert 0 < sum(row["knn"] is None for row in table) < 20 or not with_names


def test_too_many_pairs_are_sampled_evenly_and_deterministically():
    generator = torch.Generator().manual_seed(0)
    rows, identity = torch.randn(60, 6, generator=generator), torch.randint(8, (60,), generator=generator)
    everything, sample = impostors(rows, identity), impostors(rows, identity, limit=500)
    assert len(sample) == 500 < len(everything) and torch.equal(sample, impostors(rows, identity, limit=500))
    left = list(everything.numpy().round(9))
    for value in sample.numpy().round(9):
        left.remove(value)  # each is one of all pairs, and none is repeated
    assert float(sample.mean()) == pytest.approx(float(everything.mean()), abs=4 * float(everything.std()) / 500**0.5)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_without_two_identities_there_are_no_impostors(rows):
    pairs = impostors(torch.ones(rows, 3), torch.zeros(rows, dtype=torch.long))
    assert len(pairs) == 0 and thresholds(pairs) == {}


@pytest.mark.parametrize("digits", [2, 9])  # with many equal scores, and with none
def test_true_accept_rates_equal_the_sklearn_roc_curve(digits):
    generator = np.random.default_rng(digits)
    false, true = generator.normal(0, 0.2, 12_345).round(digits), generator.normal(0.4, 0.2, 3000).round(digits)
    labels = np.r_[np.zeros(len(false)), np.ones(len(true))]
    fpr, tpr, _ = roc_curve(labels, np.r_[false, true], drop_intermediate=False)
    result = thresholds(torch.from_numpy(false))
    assert list(result) == [1e-2, 1e-3]
    for far, limit in result.items():
        assert (true >= limit).mean() == pytest.approx(tpr[fpr <= far].max(), abs=1e-12)


def test_a_rate_needs_ten_impostors():
    scores = torch.linspace(-1, 1, 10_000)
    assert list(thresholds(scores)) == [1e-2, 1e-3]
    assert list(thresholds(scores[:9999])) == [1e-2]
    assert list(thresholds(scores[:999])) == []
