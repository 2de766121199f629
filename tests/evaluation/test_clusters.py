"""Cluster means against numpy, the laws of a statistic of clusters, and radii over clusters."""

import math

import numpy as np
import pytest
import torch

from attacks.evaluation.clusters import by_cluster, medians, totals
from attacks.experiment.sections.attacks import curve, radii_summary

CLUSTERS = ["b", "a", "b", "c", "a", "b"]


def test_means_and_totals_equal_numpy():
    values = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mine = {name: values.numpy()[[cluster == name for cluster in CLUSTERS]].astype(float) for name in "bac"}
    np.testing.assert_allclose(by_cluster(values, CLUSTERS), [part.mean(0) for part in mine.values()], atol=1e-15)
    np.testing.assert_allclose(totals(values, CLUSTERS), [part.sum(0) for part in mine.values()], atol=1e-15)


LETTERS = tuple("aabbbccdeffgh")


def content(radius, clusters, eps=1.0):
    """The figures of pictures with these radii, from rows as they are written."""
    columns = {"found": 0.5, "success": 0.25, "views": 8, "largest": eps}
    rows = [
        {"picture": f"p{i}", "cluster": cluster, "radius": value if math.isfinite(value) else None} | columns
        for i, (cluster, value) in enumerate(zip(clusters, radius.tolist(), strict=True))
    ]
    return radii_summary(rows, eps)


def radii(value=0):
    values = torch.rand(len(LETTERS), generator=torch.Generator().manual_seed(value), dtype=torch.float64) * 1.5
    return torch.where(values > 1, math.inf, values)


@pytest.mark.parametrize("value", range(5))
def test_the_curve_is_the_distribution_of_the_radii_and_never_falls(value):
    radius = radii(value)
    points = curve(radius, LETTERS, 1.0)
    means = [rate.mean for _, rate in points]
    assert means == sorted(means) and means[0] == 0
    groups = {name: [float(r) for r, c in zip(radius, LETTERS, strict=True) if c == name] for name in LETTERS}
    for eps, rate in points:
        expected = np.mean([np.mean([r <= eps for r in group]) for group in groups.values()])
        assert rate.mean == pytest.approx(expected)
        assert rate.low <= rate.mean <= rate.high


def test_a_radius_of_whole_levels_counts_at_its_level():
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    change = torch.full((3, 16, 16), 6 / 255)
    radius = ((image + change) - image).abs().amax()[None].double()  # some 1e-6 more than 6/255
    assert dict(curve(radius, ("a",), 16 / 255))[16 / 255 * 12 / 32].mean == 1


def test_the_median_is_that_of_the_clusters_and_none_beyond_the_largest():
    radius = torch.tensor([0.2, 0.4, 0.1, 0.3, 0.5, math.inf, 0.6], dtype=torch.float64)
    assert medians(radius, tuple("aabbbcc")).tolist() == [0.2, 0.3, 0.6]
    table = content(radius.float(), tuple("aabbbcc"))
    assert table["median"]["mean"] == pytest.approx(0.3)
    assert table["beyond"] == 1 and table["held_out"]["mean"] == 0.25
    no_radius = content(torch.full((7,), math.inf).double(), tuple("abcdefg"))
    assert no_radius["median"]["mean"] is None and no_radius["beyond"] == 7
