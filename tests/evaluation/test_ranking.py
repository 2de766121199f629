"""Ranks and votes against a sorted list of the gallery and scikit-learn's neighbours, in blocks of any size."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from attacks.evaluation import retrieval
from attacks.evaluation.retrieval import Rows, best, search, votes


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


def rank_views(similarity, matches, k=1):
    """The nearest rows and the ranks with such similarities: those to the rows of the identity."""
    unit, gallery = similarity.double(), Rows((torch.eye(similarity.shape[1]),))
    nearest, (ranks,) = search(unit, gallery, k, [best(unit, gallery, matches.nonzero()[:, 0])])
    return nearest, ranks


def vote(similarity, identity, truth, k):
    nearest, _ = rank_views(similarity, torch.arange(len(identity)) == truth, k + 1)
    return votes(nearest, torch.full((len(similarity),), truth), identity)


def in_order(row):
    return np.argsort(-row.numpy(), kind="stable")


@pytest.mark.parametrize("levels", [None, 1, 3])
def test_a_rank_equals_the_position_in_a_stable_sort(levels):
    for seed in range(20):
        similarity, identity = crowd(seed, levels=levels)
        matches = identity == identity[seed % 12]
        nearest, ranks = rank_views(similarity, matches, 4)
        for row, rank, rows in zip(similarity, ranks, nearest, strict=True):
            hits = matches.numpy()[in_order(row)]
            assert rank == 1 + (~hits)[: hits.argmax()].sum()
            assert rows.tolist() == in_order(row)[:4].tolist()


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


def test_votes_do_not_depend_on_whether_the_own_row_is_near():
    identity = torch.tensor([0, 0, 1, 1, 1])
    similarity = torch.tensor([[-1, 0.9, 0.5, 0.4, 0.3], [1, 0.9, 0.5, 0.4, 0.3]])
    assert vote(similarity, identity, 0, 1).all() and not vote(similarity, identity, 0, 3).any()


@pytest.mark.parametrize("k", [1, 3, 5, 12])
def test_votes_equal_sklearn_neighbours(k):
    generator = torch.Generator().manual_seed(k)
    gallery = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator), dim=1).double()
    views = torch.nn.functional.normalize(torch.randn(200, 4, generator=generator), dim=1).double()
    identity, exclude = torch.arange(30) % 3, torch.arange(30) == 6
    peer = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(gallery[~exclude], identity[~exclude])
    chances = np.sort(peer.predict_proba(views), 1)
    clear = chances[:, -1] > chances[:, -2]  # sklearn resolves ties by the lowest label
    assert clear.mean() > 0.5
    result = vote(views @ gallery.T, identity, 6, k)
    assert (result.numpy() == (peer.predict(views) == 0))[clear].all()


@pytest.mark.parametrize("levels", [None, 2])
def test_the_nearer_identity_wins_a_tied_vote(levels):
    ties = 0
    for seed in range(10):
        similarity, identity = crowd(seed, levels=levels)
        result = vote(similarity, identity, seed, 4)
        for row, right in zip(similarity, result, strict=True):
            nearest = [int(identity[i]) for i in in_order(row) if i != seed][:4]
            counts = Counter(nearest)
            largest = max(counts.values())
            ties += sum(count == largest for count in counts.values()) > 1
            winner = next(name for name in nearest if counts[name] == largest)
            assert right == (winner == identity[seed])
    assert ties > 20


def test_a_picture_does_not_vote_for_itself_and_k_may_exceed_the_rows():
    similarity, identity = torch.tensor([[0.9, 0.1, 0.2]]), torch.tensor([0, 1, 1])
    for k in (1, 2, 99):
        assert not vote(similarity, identity, 0, k)


def test_a_gallery_without_the_picture_or_with_nan_is_refused():
    unit, whole = torch.ones(1, 3).double(), Rows((torch.eye(3),))
    with pytest.raises(ValueError, match="`truth`"):
        best(unit, whole, torch.empty(0, dtype=torch.long))
    with pytest.raises(ValueError, match="NaN"):
        search(unit, Rows((torch.eye(3) / 0,)), 1)
    with pytest.raises(ValueError, match="one row"):
        votes(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.zeros(1))
