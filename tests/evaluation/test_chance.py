"""The chance and the reachable values of every measure, against all orders of a small gallery and random encoders."""

import itertools

import numpy as np
import pytest
import torch

from attacks.evaluation.chance import Setting, levels

GALLERIES = ([0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 1, 1, 1, 2], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 2])


@pytest.mark.parametrize("identity", GALLERIES)
@pytest.mark.parametrize("goal", [None, -1])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_levels_are_those_of_all_orders_of_the_gallery(identity, goal, k):
    rows = np.array(identity)
    target = None if goal is None else torch.tensor([len(rows) - 1])
    setting = Setting(torch.tensor([0]), ["a"], target, torch.tensor(identity), k, torch.tensor([False]), 4)
    result = levels(setting, torch.zeros(0), (0.01,))
    seen = {name: [] for name in ("success", "recall_at_1", "recall_at_5", "recall_at_10", "mrr", "knn")}
    for order in itertools.permutations(range(len(rows))):
        labels = rows[list(order)]
        rank = 1 + int(np.argmax(labels == 0))
        near = labels[np.array(order) != 0][:k].tolist()
        seen["success"].append(labels[0] != 0 if goal is None else labels[0] == rows[-1])
        seen["mrr"].append(1 / rank)
        seen["knn"].append(max(near, key=near.count) == 0)  # the first of equal ones
        for most in (1, 5, 10):
            seen[f"recall_at_{most}"].append(rank <= most)
    for name, values in seen.items():
        error = 4 * 0.5 / 64 if name == "knn" else 1e-9
        assert result[name].chance == pytest.approx(np.mean(values), abs=error), name
        if name != "knn" or rows.tolist().count(0) > 1:
            assert result[name][1:] == (min(values), max(values)), name
