"""`viewproof plan EFFECT`: answers that a simulated study confirms."""

import numpy as np
import pytest
import scipy.stats

from attacks.commands import main
from attacks.runtime.files import write_json
from attacks.runtime.tables import write_rows


def pilot(folder, clusters, measure="success"):
    """A run directory with the files that a plan reads, and the differences of its clusters."""
    draw, rows = np.random.default_rng(0), []
    gains = draw.normal(0.2, 0.25, clusters)
    for i, gain in enumerate(gains):
        for arm, score in (("no_eot", 0.0), ("eot", gain)):
            for j in range(1 + i % 2):  # one photograph, one vote
                row = {"bank": "same", "arm": arm, "picture": f"{i}-{j}", "cluster": str(i)}
                rows.append(row | {"success": float(score), "cosine": float(-score)})
    write_rows(folder / "per_image.csv", rows)
    write_json(folder / "metrics.json", {"primary": {"measure": measure, "against": "no_eot"}})
    return gains


def answer(capsys, *arguments):
    """The number of pictures, and the rest of the answer."""
    assert main(["plan", *map(str, arguments)]) == 0
    count, text = capsys.readouterr().out.strip().split(" ", 1)
    assert "\n" not in text
    return int(count), text


def power(differences):
    """The share of B studies (B,n) in which scipy's permutation test gives p below 0.05."""
    test = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", axis=1, n_resamples=499, vectorized=True, batch=20, rng=0
    )
    return (test.pvalue < 0.05).mean()


@pytest.mark.parametrize("measure", ["success", "cosine"])
def test_a_plan_from_a_pilot_has_the_power(capsys, tmp_path, measure):
    gains = pilot(tmp_path, 12, measure)
    count, text = answer(capsys, 0.2, "--pilot", tmp_path)
    assert "12 clusters" in text and measure in text and "no_eot" in text
    draw = np.random.default_rng(1)
    studies = draw.choice(gains - gains.mean() + 0.2, (300, count))
    assert abs(power(studies) - 0.8) < 0.1  # 4 standard errors


@pytest.mark.slow
def test_a_plan_from_rates_has_the_power(capsys):
    count, text = answer(capsys, 0.3, "--baseline", 0.4, "--correlation", 0.3, "--views", 64)
    assert "64 views" in text
    draw, size = np.random.default_rng(1), 1 / 0.3 - 1
    levels = (draw.beta(rate * size, (1 - rate) * size, (300, count)) for rate in (0.4, 0.7))
    low, high = (draw.binomial(64, level) / 64 for level in levels)
    assert abs(power(high - low) - 0.8) < 0.1


def test_a_pilot_of_one_cluster_is_refused(tmp_path, capsys):
    pilot(tmp_path, 1)
    assert main(["plan", "0.1", "--pilot", str(tmp_path)]) == 1
    assert "has one cluster; a pilot needs two or more" in capsys.readouterr().err
