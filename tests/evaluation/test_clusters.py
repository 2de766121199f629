"""Cluster means against numpy, and the laws of a statistic of clusters."""

import re

import numpy as np
import pytest
import torch

from attacks.evaluation.ablation import LeftOut
from attacks.evaluation.clusters import by_cluster, totals
from attacks.evaluation.deployment import Cell, Deployment
from attacks.evaluation.drift import Drift
from attacks.evaluation.explain.explanation import Explanations, Maps
from attacks.evaluation.explain.gradients import Reach
from attacks.evaluation.judge import CellScores
from attacks.evaluation.response import Axis, Slice

CLUSTERS = ["b", "a", "b", "c", "a", "b"]


def test_means_and_totals_equal_numpy():
    values = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mine = {name: values.numpy()[[cluster == name for cluster in CLUSTERS]].astype(float) for name in "bac"}
    np.testing.assert_allclose(by_cluster(values, CLUSTERS), [part.mean(0) for part in mine.values()], atol=1e-15)
    np.testing.assert_allclose(totals(values, CLUSTERS), [part.sum(0) for part in mine.values()], atol=1e-15)


def test_repeating_the_pictures_of_one_cluster_changes_no_result():
    single, triple = (dict(leaves(metrics_with(repeats))) for repeats in (1, 3))
    assert len(single) > 150
    assert triple == pytest.approx(single)


def metrics_with(repeats):
    """Metrics of random pictures in twelve clusters; those of one cluster are there several times."""
    pictures = [(str(i), j) for i in range(12) for j in range(1 + i % 2)]
    clusters = tuple(name for name, _ in pictures for _ in range(repeats if name == "3" else 1))
    random = np.random.default_rng(0).random((9, len(pictures), 8))
    values = torch.from_numpy(random.repeat([repeats if name == "3" else 1 for name, _ in pictures], axis=1))
    arms = {arm: CellScores(values[i], values[i] < 0.4) for i, arm in enumerate(("clean", "noise", "no_eot", "eot"))}
    cosine = {arm: arms[arm].cosine[None] for arm in ("noise", "eot")}
    x, y = (Axis(name, i, (0.0, 1.0), (0.25, 0.75), (0.0, 1.0)) for i, name in enumerate("xy"))
    maps = Maps(values[4], values[4, :, 0], None, None)
    reach = Reach(values[5], *values[6:9, :, 0])
    ablation = {"nothing": {"all": arms["eot"]}, "x": {"all": arms["no_eot"]}}
    return {
        "map": Slice((x, y), arms, 2, clusters).map_dict(),
        "curve": Slice((x,), arms, 4, clusters).curve_dict(),
        "left_out": LeftOut(ablation, clusters, clusters, 1).to_dict(),
        "deployment": Deployment((Cell("PNG", "torch", arms),), clusters, clusters, (1, 1), ()).to_dict(),
        "drift": Drift(("output",), cosine, 0, 0.0).to_dict(clusters),
        "explanations": Explanations(clusters, clusters, {"clean": maps}, None, reach, (), 0, 0, 0.0).to_dict(),
    }


def leaves(node, place=""):
    """The numbers with their places, without the number of pictures and the intervals of shares, which depend on the
    number of views."""
    if isinstance(node, dict | list | tuple):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, f"{place} {key}")
    elif not isinstance(node, str | None) and not re.search(r"pictures$|(success|difference).* (low|high)$", place):
        yield place, node


def test_every_picture_needs_a_cluster():
    with pytest.raises(ValueError, match=r"`clusters`.*got 5 for 6"):
        by_cluster(torch.rand(6), CLUSTERS[:5])
