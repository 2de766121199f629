"""The chance and the reachable values of every measure, against all orders of a small gallery."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attacks.experiment.chance import chance_levels
from tests.helpers.galleries import gallery_of

GALLERIES = ([0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 2])


@pytest.mark.parametrize("identity", GALLERIES)
@pytest.mark.parametrize("goal", [None, -1])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_levels_are_those_of_all_orders_of_the_gallery(identity, goal, k):
    rows = np.array(identity)
    target = None if goal is None else torch.tensor([len(rows) - 1])
    queries = SimpleNamespace(clusters=["a"], weights=())
    parts = {"gallery": gallery_of(identity), "truth": torch.tensor([0]), "goal": target, "queries": queries}
    result = chance_levels(SimpleNamespace(**parts, acceptance=None, encoder=None), k, 4, None, (0.01,))
    names = ("success", "recall_at_1", "recall_at_5", "recall_at_10", "mrr", "median_rank", "goal_rank", "knn")
    draws = {name: [] for name in names}
    for order in itertools.permutations(range(len(rows))):
        labels = rows[list(order)]
        rank = 1 + int(np.argmax(labels == 0))
        near = labels[np.array(order) != 0][:k].tolist()
        draws["success"].append(labels[0] != 0 if goal is None else labels[0] == rows[-1])
        draws["mrr"].append(1 / rank)
        draws["median_rank"].append(rank)
        draws["goal_rank"].append(1 + int(np.argmax(labels == rows[-1])))
        draws["knn"].append(max(near, key=near.count) == 0)  # the first of equal ones
        for depth in (1, 5, 10):
            draws[f"recall_at_{depth}"].append(rank <= depth)
    for name, values in draws.items():
        if (name == "knn" and identity.count(0) == 1) or (name == "goal_rank" and goal is None):
            assert name not in result
            continue
        error = 4 * 0.5 / 64 if name == "knn" else 1e-9
        mean = np.sort(values)[(len(values) - 1) // 2] if "rank" in name else np.mean(values)
        assert result[name].chance == pytest.approx(mean, abs=error), name
        assert result[name][1:] == (min(values), max(values)), name
