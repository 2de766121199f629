"""The primary comparison and the others, against scipy's permutation test and by law."""

import numpy as np
import pytest

from attacks.evaluation.per_image import primary

ARMS = ("clean", "noise", "no_eot", "one_view", "eot")
BANKS = ("same", "wide")


def table(clusters=12, pictures=2, gain=0.2, seed=0):
    """Rows of per_image.csv: `each` pictures in each cluster, seen from 64 views."""
    draw, rows = np.random.default_rng(seed), []
    level = dict(zip(ARMS, (0.0, 0.02, 0.5, 0.6, 0.5 + gain), strict=True))
    for bank in BANKS:
        for cluster in range(clusters):
            base = draw.normal(0, 0.1)
            for picture in range(pictures):
                for arm in ARMS:
                    success = np.clip(level[arm] + base + draw.normal(0, 0.05), 0, 1)
                    row = {"bank": bank, "arm": arm, "picture": f"{cluster}-{picture}", "cluster": str(cluster)}
                    rows.append(row | {"views": 64, "success": success, "cosine": 1 - success})
    return rows


def test_the_primary_comparison_names_a_stronger_noise():
    rows = [row | {"arm": {"noise": "no_eot", "no_eot": "noise"}.get(row["arm"], row["arm"])} for row in table()]
    assert primary(rows, "success")["against"] == "noise"


@pytest.mark.slow
def test_choosing_the_strongest_baseline_keeps_the_level():
    # Two baselines as strong as EOT: choosing the strongest must not reject more than the level.
    rejections = 0
    for seed in range(400):
        draw = np.random.default_rng(seed)
        rows = [
            {"bank": "same", "arm": arm, "picture": str(i), "cluster": str(i), "views": 64, "success": x, "cosine": 0}
            for arm in ARMS
            for i, x in enumerate(draw.uniform(0, 1, 8))
        ]
        rejections += primary(rows, "success")["p"] < 0.05
    assert rejections / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5
