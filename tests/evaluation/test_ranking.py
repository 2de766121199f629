"""Ranks and votes against a sorted list of the gallery and scikit-learn's neighbours."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from attacks.evaluation.retrieval_metrics import ranks, votes


def crowd(seed, views=40, rows=12, levels=None):
    """Similarities, with many ties where there are few `levels`, and identities of three rows each."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(views, rows, generator=generator)
    if levels:
        similarity = (similarity * levels).round() / levels
    return similarity, torch.randperm(rows, generator=generator) // 3


def in_order(row):
    return np.argsort(-row.numpy(), kind="stable")


@pytest.mark.parametrize("levels", [None, 1, 3])
def test_a_rank_equals_the_position_in_a_stable_sort(levels):
    for seed in range(20):
        similarity, identity = crowd(seed, levels=levels)
        same = identity == identity[seed % 12]
        for row, rank in zip(similarity, ranks(similarity, same), strict=True):
            shown = same.numpy()[in_order(row)]
            assert rank == 1 + (~shown)[: shown.argmax()].sum()


@pytest.mark.parametrize("levels", [None, 1])
def test_rank_one_equals_argmax(levels):
    similarity, identity = crowd(0, views=500, levels=levels)
    same = identity == 2
    assert torch.equal(ranks(similarity, same) == 1, same[similarity.argmax(1)])


@pytest.mark.parametrize("k", [1, 3, 5, 12])
def test_votes_equal_sklearn_neighbours(k):
    generator = torch.Generator().manual_seed(k)
    gallery = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator), dim=1).double()
    seen = torch.nn.functional.normalize(torch.randn(200, 4, generator=generator), dim=1).double()
    identity, exclude = torch.arange(30) % 3, torch.arange(30) == 6
    peer = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(gallery[~exclude], identity[~exclude])
    chances = np.sort(peer.predict_proba(seen), 1)
    clear = chances[:, -1] > chances[:, -2]  # sklearn resolves ties by the lowest label
    assert clear.mean() > 0.5
    result = votes(seen @ gallery.T, identity, 0, exclude, k)
    assert (result.numpy() == (peer.predict(seen) == 0))[clear].all()


@pytest.mark.parametrize("levels", [None, 2])
def test_the_nearer_identity_wins_a_tied_vote(levels):
    ties = 0
    for seed in range(10):
        similarity, identity = crowd(seed, levels=levels)
        exclude = torch.arange(12) == seed
        result = votes(similarity, identity, int(identity[seed]), exclude, 4)
        for row, right in zip(similarity, result, strict=True):
            nearest = [int(identity[i]) for i in in_order(row) if i != seed][:4]
            counts = Counter(nearest)
            most = max(counts.values())
            ties += sum(count == most for count in counts.values()) > 1
            winner = next(name for name in nearest if counts[name] == most)
            assert right == (winner == identity[seed])
    assert ties > 20


def test_a_picture_does_not_vote_for_itself_and_k_may_exceed_the_rows():
    similarity, identity = torch.tensor([[0.9, 0.1, 0.2]]), torch.tensor([0, 1, 1])
    for k in (1, 2, 99):
        assert not votes(similarity, identity, 0, torch.tensor([True, False, False]), k)
    assert votes(similarity, identity, 0, torch.zeros(3, dtype=torch.bool), 1)
    assert not votes(similarity, identity, 0, torch.zeros(3, dtype=torch.bool), 99)


def test_invalid_ranks_and_votes_are_refused():
    similarity, nothing = torch.zeros(1, 3), torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="`same`"):
        ranks(similarity, nothing)
    with pytest.raises(ValueError, match="NaN"):
        ranks(similarity / 0, ~nothing)
    for exclude, k in ((nothing, 0), (~nothing, 1)):
        with pytest.raises(ValueError, match="`k`"):
            votes(similarity, torch.arange(3), 0, exclude, k)
