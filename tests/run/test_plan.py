"""`plan=EFFECT`: refusals in one line, and answers that a simulated study confirms."""

import re

import numpy as np
import pytest
import scipy.stats

from attacks.runtime.files import write_json
from attacks.runtime.tables import write_rows
from tests.helpers.wrong import desk as desk
from tests.run.test_run import call

WRONG = {
    "plan=0.1": "`plan` needs pilot=RUN_DIRECTORY or baseline=RATE, one of the two",
    "plan=0.1 pilot={here} baseline=0.5": "one of the two",
    "plan=0.1 baseline=0.5 power=0.9": "`power` is no key of a plan: known are plan, pilot, baseline",
    "plan=0.1 baseline=0.5 config=smoke": "`config` is no key",
    "plan= baseline=0.5": "`plan` must be a number above 0 and below 1; got nothing",
    "plan=0 baseline=0.5": "`plan` must be a number above 0",
    "plan=nan baseline=0.5": "`plan` must be a number above 0",
    "plan=ten baseline=0.5": "`plan` must be a number above 0 and below 1; got ten",
    "plan=0.1 baseline=1": "`baseline` must be a number above 0 and below 1; got 1",
    "plan=0.6 baseline=0.5": r"`baseline` \+ `effect` must be rates, 0..1; got 0.5 and 1.1",
    "plan=0.1 baseline=0.5 correlation=1": "`correlation` must be a number",
    "plan=0.1 baseline=0.5 views=0": "`views` must be a whole number of at least 1; got 0",
    "plan=0.1 baseline=0.5 views=1e3": "`views` must be a whole number",
    "plan=0.1 pilot={here}/none": "metrics.json|must be",
    "plan=0.1 pilot={here}": "metrics.json|must be",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_plan_gives_a_one_line_error(desk, command):
    message = desk.refused(*(word.replace("{here}", str(desk.here)) for word in command.split()), out=None)
    assert re.search(WRONG[command], message), message


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


def answer(monkeypatch, capsys, *arguments):
    """The number of pictures, and the rest of the answer."""
    assert call(monkeypatch, *arguments) == 0
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
def test_a_plan_from_a_pilot_has_the_power(monkeypatch, capsys, tmp_path, measure):
    gains = pilot(tmp_path, 12, measure)
    count, text = answer(monkeypatch, capsys, "plan=0.2", f"pilot={tmp_path}")
    assert "12 clusters" in text and measure in text and "no_eot" in text
    draw = np.random.default_rng(1)
    studies = draw.choice(gains - gains.mean() + 0.2, (300, count))
    assert abs(power(studies) - 0.8) < 0.1  # 4 standard errors


@pytest.mark.slow
def test_a_plan_from_rates_has_the_power(monkeypatch, capsys):
    count, text = answer(monkeypatch, capsys, "plan=0.3", "baseline=0.4", "correlation=0.3", "views=64")
    assert "64 views" in text
    draw, size = np.random.default_rng(1), 1 / 0.3 - 1
    levels = (draw.beta(rate * size, (1 - rate) * size, (300, count)) for rate in (0.4, 0.7))
    low, high = (draw.binomial(64, level) / 64 for level in levels)
    assert abs(power(high - low) - 0.8) < 0.1


@pytest.mark.slow
def test_a_smaller_difference_needs_more_pictures(monkeypatch, capsys):
    counts = [answer(monkeypatch, capsys, f"plan={effect}", "baseline=0.4")[0] for effect in (0.4, 0.3, 0.2)]
    assert counts[0] < counts[1] < counts[2]


def test_a_pilot_of_one_cluster_is_refused(desk):
    pilot(desk.given, 1)
    assert "has one cluster; a pilot needs two or more" in desk.refused("plan=0.1", f"pilot={desk.given}", out=None)
