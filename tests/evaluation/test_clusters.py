"""Cluster means against numpy, and the laws of a statistic of clusters."""

import re

import numpy as np
import pytest
import torch

from attacks.evaluation import ablation, deployment, drift
from attacks.evaluation.clusters import Sample, by_cluster, totals
from attacks.evaluation.explain import explanation
from attacks.evaluation.explain.explanation import Maps
from attacks.evaluation.explain.gradients import Reach
from attacks.evaluation.judge import CellScores

CLUSTERS = ["b", "a", "b", "c", "a", "b"]


def test_means_and_totals_equal_numpy():
    values = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mine = {name: values.numpy()[[cluster == name for cluster in CLUSTERS]].astype(float) for name in "bac"}
    np.testing.assert_allclose(by_cluster(values, CLUSTERS), [part.mean(0) for part in mine.values()], atol=1e-15)
    np.testing.assert_allclose(totals(values, CLUSTERS), [part.sum(0) for part in mine.values()], atol=1e-15)


def test_repeating_the_pictures_of_one_cluster_changes_no_result():
    single, triple = (dict(leaves(metrics_for_repeats(repeats))) for repeats in (1, 3))
    assert len(single) > 40
    assert triple == pytest.approx(single)


def metrics_for_repeats(repeats):
    """Metrics of random pictures in twelve clusters; those of one cluster are there several times."""
    pictures = [(str(i), j) for i in range(12) for j in range(1 + i % 2)]
    clusters = tuple(name for name, _ in pictures for _ in range(repeats if name == "3" else 1))
    random = np.random.default_rng(0).random((9, len(pictures), 8))
    values = torch.from_numpy(random.repeat([repeats if name == "3" else 1 for name, _ in pictures], axis=1))
    arms = {arm: CellScores(values[i], values[i] < 0.4) for i, arm in enumerate(("clean", "noise", "no_eot", "eot"))}
    cosine = {arm: arms[arm].cosine[None] for arm in ("noise", "eot")}
    names = tuple(f"{i}" for i in range(len(clusters)))
    sample = Sample(torch.arange(len(names)), names, clusters)
    maps = Maps(values[4], values[4, :, 0], None, None)
    reach = Reach(values[5], *values[6:9, :, 0])
    stages = {("nothing", "all"): arms["eot"], ("x", "all"): arms["no_eot"]}
    rows = [row for key, cell in stages.items() for row in cell.rows(sample, without=key[0], test=key[1])]
    cells = [row for arm, cell in arms.items() for row in cell.rows(sample, codec="PNG", resampler="x", arm=arm)]
    return {
        "left_out": ablation.summary(rows),
        "deployment": deployment.deployment_summary(cells),
        "drift": drift.drift_summary(drift.Drift(("output",), cosine, 0, 0.0).rows(sample)),
        "explanations": explanation.explanation_summary(
            explanation.Explanations({"clean": maps}, None, reach, (), 0, 0, 0.0).rows(sample)
        ),
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
