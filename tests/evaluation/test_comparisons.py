"""The primary comparison and the others, against scipy's permutation test and by law."""

import numpy as np
import pytest
import scipy.stats
import torch

from attacks.evaluation.comparisons import primary, secondary
from attacks.evaluation.significance import holm, mean_difference, paired_shares

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


def units(rows, bank, arm, measure):
    """The mean of each cluster."""
    mine = [row for row in rows if (row["bank"], row["arm"]) == (bank, arm)]
    names = dict.fromkeys(row["cluster"] for row in mine)
    return np.array([np.mean([row[measure] for row in mine if row["cluster"] == name]) for name in names])


def flips(differences):
    """scipy's exact test of the signs of paired differences."""
    test = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    return test.pvalue


@pytest.mark.parametrize("measure", ["success", "cosine"])
def test_primary_is_the_strongest_baseline_with_the_largest_p(measure):
    rows = table(clusters=9)
    result = primary(rows, measure)
    arm_units = units(rows, "same", "eot", measure)
    baseline_units = {arm: units(rows, "same", arm, measure) for arm in ("noise", "no_eot")}
    assert (result["against"], result["clusters"], result["bank"]) == ("no_eot", 9, "same")
    assert result["p"] == pytest.approx(max(flips(arm_units - other) for other in baseline_units.values()))
    first_units, other = torch.from_numpy(arm_units), torch.from_numpy(baseline_units["no_eot"])
    expected = paired_shares(first_units, other, 128) if measure == "success" else mean_difference(first_units, other)
    assert result["difference"] == expected._asdict()


def test_the_primary_comparison_names_a_stronger_noise():
    rows = [row | {"arm": {"noise": "no_eot", "no_eot": "noise"}.get(row["arm"], row["arm"])} for row in table()]
    assert primary(rows, "success")["against"] == "noise"


@pytest.mark.slow
def test_the_others_are_corrected_without_the_primary_one():
    rows = table()
    result = secondary(rows, "success")
    keys = [(row["bank"], row["other"], row["measure"]) for row in result]
    all_keys = [
        (b, o, m) for b in BANKS for o in ("one_view", "clean", "noise", "no_eot") for m in ("cosine", "success")
    ]
    assert keys == [key for key in all_keys if key != ("same", "no_eot", "success")]
    for row in result:
        first_units, other = (units(rows, row["bank"], arm, row["measure"]) for arm in ("eot", row["other"]))
        assert row["p"] == pytest.approx(flips(first_units - other))
        assert row["difference"]["mean"] == pytest.approx((first_units - other).mean())
    assert [row["p_holm"] for row in result] == holm([row["p"] for row in result])
    assert {row["needed"] for row in result} == {None}


@pytest.mark.parametrize(("clusters", "testable"), [(5, False), (6, True)])
def test_no_test_that_could_not_reach_the_level(clusters, testable):
    rows = table(clusters)
    first, rest = primary(rows, "success"), secondary(rows, "success")
    assert (first["p"] is not None) == testable
    assert first["needed"] == (None if testable else 6)
    assert {row["p"] for row in rest} == {row["p_holm"] for row in rest} == {None}
    minimum = {row["needed"] for row in rest}.pop()
    assert len(rest) * 2.0 ** (1 - minimum) < 0.05 <= len(rest) * 2.0 ** (2 - minimum)


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
