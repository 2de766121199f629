"""Smallest radii over pictures: their median and the curve of success."""

import math

import numpy as np
import pytest
import torch

from attacks.evaluation.clusters import medians
from attacks.evaluation.judge import CellScores
from attacks.evaluation.radii import SmallestRadii, curve
from attacks.report.words import radii as words

CLUSTERS = tuple("aabbbccdeffgh")


def result(radius, clusters=CLUSTERS, eps=1.0):
    count = len(radius)
    held_out = CellScores(torch.zeros(count, 8), torch.arange(count * 8).view(count, 8) % 3 == 0)
    names = tuple(f"p{i}" for i in range(count))
    return SmallestRadii(names, clusters[:count], eps, radius, torch.full((count,), 0.5), held_out, (20, 10))


def radii(value=0):
    values = torch.rand(len(CLUSTERS), generator=torch.Generator().manual_seed(value), dtype=torch.float64) * 1.5
    return torch.where(values > 1, math.inf, values)


@pytest.mark.parametrize("value", range(5))
def test_the_curve_is_the_distribution_of_the_radii_and_never_falls(value):
    radius = radii(value)
    points = curve(radius, CLUSTERS, 1.0)
    means = [rate.mean for _, rate in points]
    assert means == sorted(means) and means[0] == 0
    groups = {name: [float(r) for r, c in zip(radius, CLUSTERS, strict=True) if c == name] for name in CLUSTERS}
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
    content = result(radius, tuple("aabbbcc")).to_dict()
    assert content["median"]["mean"] == 0.3 and content["beyond"] == 1 and content["passes"]["runs"] == 3
    beyond = result(torch.full((7,), math.inf).double(), tuple("abcdefg")).to_dict()
    assert beyond["median"]["mean"] is None and beyond["beyond"] == 7
    assert words(beyond["median"], "linf", 8 / 255).startswith("> 8")


def test_the_rows_have_what_the_tables_are_computed_from():
    radii_result = result(radii())
    rows, content = radii_result.rows(), radii_result.to_dict()
    radius = torch.tensor([math.inf if row["radius"] is None else row["radius"] for row in rows], dtype=torch.float64)
    assert torch.equal(radius, radii_result.radius)
    assert [point["success"] for point in content["curve"]] == [
        rate._asdict() for _, rate in curve(radius, [row["cluster"] for row in rows], rows[0]["largest"])
    ]
