"""Cluster means against numpy, and the laws of a statistic of clusters."""

import numpy as np
import pytest
import torch

from attacks.evaluation.clusters import by_cluster, totals

CLUSTERS = ["b", "a", "b", "c", "a", "b"]


def test_means_and_totals_equal_numpy():
    values = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mine = {name: values.numpy()[[each == name for each in CLUSTERS]].astype(float) for name in "bac"}
    np.testing.assert_allclose(by_cluster(values, CLUSTERS), [part.mean(0) for part in mine.values()], atol=1e-15)
    np.testing.assert_allclose(totals(values, CLUSTERS), [part.sum(0) for part in mine.values()], atol=1e-15)


def test_repeating_the_pictures_of_every_cluster_changes_nothing():
    values = torch.rand(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(by_cluster(values.repeat(3), CLUSTERS * 3), by_cluster(values, CLUSTERS))


def test_pictures_of_their_own_are_their_own_clusters():
    values = torch.rand(6, dtype=torch.float64)
    assert torch.equal(by_cluster(values, list("abcdef")), values)


def test_every_picture_needs_a_cluster():
    with pytest.raises(ValueError, match=r"`clusters`.*got 5 for 6"):
        by_cluster(torch.rand(6), CLUSTERS[:5])
