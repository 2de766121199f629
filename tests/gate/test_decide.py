"""Verdicts follow from the ends of the interval; a weak attack cannot pass; a sequence holds at every look."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import load_encoder, robustness
from attacks.experiment.chance import chance_levels
from attacks.gate.decide import decide, decided_row, weaknesses
from attacks.gate.policy import POLICY_MEASURES, Policy, Requirement
from attacks.gate.verdict import size_text
from attacks.inference.bounded import interval
from scripts.benchmarks.zoo_encoders import with_gradient
from tests.helpers import report_pages
from tests.helpers.galleries import gallery_of


def rows(values, measure="success", views=64, arm="eot"):
    column = {"bank": "same", "arm": arm, "views": views}
    return [column | {"picture": str(i), "cluster": str(i), measure: float(x)} for i, x in enumerate(values)]


VALUES = [0.2, 0.3, 0.5, 0.4, 0.1, 0.35, 0.25, 0.45, 0.3, 0.2]


@settings(max_examples=60)
@given(st.floats(0, 1), st.sampled_from(["at_least", "at_most"]), st.booleans())
def test_a_verdict_is_that_of_the_whole_interval(bar, side, sequential):
    row = decided_row(Requirement("success", "eot", **{side: bar}), rows(VALUES), sequential)
    good = [x >= bar if side == "at_least" else x <= bar for x in (row.low, row.high)]
    assert row.verdict == ("PASS" if all(good) else "UNDECIDED" if any(good) else "FAIL")
    assert row.low <= row.value <= row.high and row.clusters == row.pictures == 10
    if not sequential:
        assert (row.value, row.low, row.high) == pytest.approx(interval(torch.tensor(VALUES))[:3])


def test_p10_asks_for_nine_clusters_in_ten():
    for n, misses in ((30, 0), (40, 0), (80, 0), (80, 2), (80, 30)):
        values = [0.9] * (n - misses) + [0.1] * misses
        row = decided_row(Requirement("cosine", "eot", at_least=0.5, of="p10"), rows(values, "cosine"), False)
        low, high = scipy.stats.binomtest(n - misses, n).proportion_ci(0.95, "exact")
        assert row.low <= low and high <= row.high
        assert row.verdict == ("PASS" if row.low >= 0.9 else "FAIL" if row.high < 0.9 else "UNDECIDED")


@pytest.mark.parametrize("sequential", [False, True])
def test_weights_pull_means_and_shares_but_no_worst_cluster(sequential):
    def decided(weights, **bar):
        columns = [{}] * 10 if weights is None else [{"weight": weight} for weight in weights]
        table = [row | column for row, column in zip(rows(VALUES), columns, strict=True)]
        return decided_row(Requirement("success", "eot", **bar), table, sequential)

    x, w = torch.tensor(VALUES), torch.tensor(VALUES, dtype=torch.float64) * 2
    for bar in ({"at_most": 0.4}, {"at_most": 0.3, "of": "p10"}, {"at_most": 0.4, "of": "worst"}):
        plain, alike, row = decided(None, **bar), decided([1] * 10, **bar), decided(w.tolist(), **bar)
        is_worst = bar.get("of") == "worst"
        assert alike == replace(plain, weighted=not is_worst)
        units = (x <= 0.3).double() if "of" in bar else x
        ends = (0.5,) * 3 if is_worst else interval(units, weights=w, sequential=sequential)[:3]
        assert (row.value, row.low, row.high) == pytest.approx(ends) and row.weighted != is_worst
        assert ("weighted by `weight`" in size_text(vars(row))) != is_worst


def test_worst_is_the_worst_cluster_of_the_run():
    for bar, verdict in ((0.4, "FAIL"), (0.6, "PASS")):
        row = decided_row(Requirement("success", "eot", at_most=bar, of="worst"), rows(VALUES), False)
        assert (row.verdict, row.value) == (verdict, 0.5)


WORST = {"success": Requirement("success", "eot", at_most=0.2, of="worst")}
WORST["cosine"] = Requirement("cosine", "eot", at_least=0.8, of="worst")


@pytest.mark.parametrize("measure", WORST)
@pytest.mark.parametrize(("beaten", "verdict"), [([], "PASS"), ([3], "UNDECIDED")])
@pytest.mark.parametrize("arm", ["no_eot", "one_view"])
def test_worst_passes_only_if_no_other_attack_breaks_a_cluster(measure, beaten, verdict, arm):
    """On average that attack is the weaker one."""
    other = [1.0 if i in beaten else 0.05 for i in range(10)]
    table = [*rows([0.1] * 10), *rows(other, arm=arm), *rows([1.0] * 10, arm="noise")]
    table = [row | {"cosine": 1 - float(row["success"])} for row in table]
    (row,) = decide(Policy("A.", "2026-11-24", (WORST[measure],)), "", content(), table, False).rows
    assert row.verdict == verdict
    assert (arm in row.reason) == bool(beaten)


def test_an_attack_that_is_weaker_in_every_one_of_few_clusters_is_weak():
    difference = {"mean": -0.9, "low": -0.95, "high": -0.85, "kind": "range"}
    assert weaknesses(content(comparisons=[better("no_eot")[0] | {"difference": difference}]))


def test_pictures_that_fail_untouched_have_no_share_of_survived_views():
    measured_rows = [row | {"survived": 8, "success_survived": row["success"]} for row in rows(VALUES)]
    empty = rows([1.0])[0] | {"cluster": "other", "survived": 0, "success": 1.0, "success_survived": None}
    requirement = Requirement("success_survived", "eot", at_most=0.9)
    for sequential in (False, True):
        tables = [*measured_rows, empty], measured_rows
        row, reference = (decided_row(requirement, table, sequential) for table in tables)
        assert row == reference
        assert row.value == pytest.approx(np.mean(VALUES))


def test_a_cosine_that_rounding_puts_above_one_counts_as_such():
    above, exact = rows([1 + 2e-7] * 12, "cosine", arm="clean"), rows([1.0] * 12, "cosine", arm="clean")
    requirement = Requirement("cosine", "clean", at_least=0.5)
    ours, reference = (decided_row(requirement, table, True) for table in (above, exact))
    assert (ours.verdict, ours.low, ours.high) == (reference.verdict, reference.low, reference.high)


def test_a_single_cluster_says_little_of_others():
    assert decided_row(Requirement("success", "eot", at_most=0.9), rows([0.0]), False).verdict == "UNDECIDED"
    assert decided_row(Requirement("success", "eot", at_most=0.999), rows([0.0]), False).verdict == "PASS"


def test_further_pictures_like_these_decide():
    values = np.random.default_rng(0).normal(0.5, 0.1, 40).clip(0, 1)
    ends = interval(torch.tensor(values), -1)
    bar = (ends.mean + ends.high) / 2
    row = decided_row(Requirement("cosine", "eot", at_most=bar), rows(values, "cosine"), False)
    assert row.verdict == "UNDECIDED"
    longer = rows(np.resize(values, 40 + row.more), "cosine")
    assert decided_row(row.requirement, longer, False).verdict == "PASS"


def test_what_the_run_lacks_is_an_error():
    for requirement in (Requirement("mrr", "eot", at_least=0), Requirement("success", "eot", "wide", at_least=0)):
        with pytest.raises(ValueError, match="the run has no"):
            decided_row(requirement, rows(VALUES), False)


def checks(**verdicts):
    """The section `sanity` of metrics.json: a check that has passed, and these."""
    verdicts = {"one step": "passed"} | verdicts
    failed = [name for name, verdict in verdicts.items() if verdict == "failed"]
    return {
        "failed": failed,
        "checks": [{"name": name, "verdict": word, "words": ""} for name, word in verdicts.items()],
    }


def content(**changes):
    return report_pages.content(comparisons=[], sanity=checks(plateau="passed"), failed=[]) | changes


def better(other):
    difference = {"mean": -0.1, "low": -0.2, "high": -0.05, "kind": "interval"}
    return [{"bank": "same", "measure": "success", "arm": "eot", "other": other, "difference": difference}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sanity": None}, "not checked"),
        ({"sanity": checks(masking="failed")}, "masking failed"),
        ({"sanity": {"failed": [], "checks": checks(plateau="skipped")["checks"][1:]}}, "no check of the"),
        ({"sanity": checks(plateau="skipped")}, "too short to show"),
        ({"failed": [{"picture": 1}]}, "1 picture failed"),
        ({"comparisons": better("one_view")}, "(one_view) is stronger"),
    ],
)
def test_a_weak_attack_never_passes_and_may_fail(changes, reason):
    requirements = tuple(Requirement("success", "eot", at_most=bar) for bar in (0.9, 0.01))
    policy = Policy("A claim.", "2026-11-24", requirements)
    assert [row.verdict for row in decide(policy, "", content(), rows(VALUES), False).rows] == ["PASS", "FAIL"]
    verdict = decide(policy, "run", content(**changes), rows(VALUES), False)
    assert [row.verdict for row in verdict.rows] == ["UNDECIDED", "FAIL"] and verdict.exit_code == 3
    assert any(reason in text for text in verdict.reasons) and reason in str(verdict)
    assert weaknesses(content(comparisons=better("noise"))) == ()


def test_more_pictures_decide_no_row_of_a_weak_attack():
    policy = Policy("A claim.", "2026-11-24", (Requirement("cosine", "eot", at_least=0.2),))
    table = rows([0.5] * 12, "cosine")
    strong, weak = (decide(policy, "", content(**changes), table, False) for changes in ({}, {"sanity": None}))
    assert "further pictures" in str(strong) and "further pictures" not in str(weak)


@cache
def chance(size, targeted=False):
    queries, goal = SimpleNamespace(clusters=["a"], weights=()), torch.tensor([3]) if targeted else None
    gallery = gallery_of([i // 2 for i in range(size)])
    parts = {"gallery": gallery, "truth": torch.tensor([0]), "goal": goal, "queries": queries, "acceptance": None}
    study = SimpleNamespace(**parts, encoder=SimpleNamespace(false_alarms=0.05))
    values = chance_levels(study, 3, 64, torch.linspace(-0.2, 0.5, 50), [0.01])
    return {name: level._asdict() for name, level in values.items()}


@pytest.mark.parametrize("measure", [*POLICY_MEASURES, "tar_0.01"])
@pytest.mark.parametrize("size", [4, 9, 300])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("side", ["at_least", "at_most"])
def test_a_bar_that_a_random_encoder_meets_does_not_pass(measure, size, targeted, side):
    """The run has the best value that it can have in each of 40 clusters: so nothing but chance is in the way."""
    record = content(chance=chance(size, targeted))
    record["threat"]["targeted"] = targeted
    level = record["chance"][measure]
    best = level["most" if side == "at_least" else "least"]
    table = [row | {"survived": 64} for row in rows([best] * 40, measure)]
    for bar in (*np.linspace(level["least"], level["most"], 4), level["chance"]):
        requirement = Requirement(measure, "eot", **{side: float(bar)})
        verdict = decide(Policy("A.", "2026-11-24", (requirement,)), "", record, table, False)
        (row,), meets = verdict.rows, requirement.meets(level["chance"])
        assert row.verdict != "PASS" if meets else row.verdict in ("PASS", "UNDECIDED"), (bar, row)
        assert not meets or row.verdict == "FAIL" or row.reason, (bar, row)
    assert chance(9)["recall_at_10"] == {"chance": 1, "least": 1, "most": 1}


def test_a_bar_on_a_change_counts_beside_one_that_chance_does_not_meet():
    change = Requirement("shift", "eot", at_least=-0.3)
    table = [row | {"shift": -0.1} for row in rows([0.1] * 40)]
    for other, verdict in ((0.5, "PASS"), (1.0, "UNDECIDED")):
        policy = Policy("A.", "2026-11-24", (change, Requirement("success", "eot", at_most=other)))
        assert [row.verdict for row in decide(policy, "", content(), table, False).rows] == [verdict] * 2
    assert decide(policy, "", content(chance={}), table, False).verdict == "UNDECIDED"


def test_the_verdict_of_a_policy_is_its_worst_row():
    bars = {"PASS": 0.7, "FAIL": 0.01, "UNDECIDED": 0.3}
    for words, code in ((["PASS"], 0), (["PASS", "UNDECIDED"], 4), (["UNDECIDED", "FAIL", "PASS"], 3)):
        requirements = tuple(Requirement("success", "eot", at_most=bars[word]) for word in words)
        policy = Policy("A.", "2026-11-24", requirements)
        verdict = decide(policy, "", content(), rows(VALUES), False)
        assert [row.verdict for row in verdict.rows] == words and verdict.exit_code == code
        assert verdict.as_dict()["verdict"] == verdict.verdict
        assert all(f"<td>{word}</td>" in verdict._repr_html_() for word in words)


POLICY = """claim: Anything passes this, if the attack is checked.
date: 2026-11-24
requirements:
  - {measure: success, arm: eot, at_most: 0.99}
"""
FAST = {"evaluate.views": 16, "data.size": 64}


class Wrapper(torch.nn.Module):
    """The pocket encoder behind a change of its input or of its gradient."""

    def __init__(self, change):
        super().__init__()
        self.encoder, self.change = load_encoder("pocket"), change

    def forward(self, images):
        return self.encoder(self.change(images))


def ripple(x):
    return x + 0.03 * (400 * x).sin()


WEAK = {
    "one step": (lambda x: x, {"attack.gradients": 1}),
    "ascent": (with_gradient(lambda grad: -grad), {}),
    "almost no gradient": (with_gradient(lambda grad: torch.where(grad.abs() < grad.abs().max(), 0.0, grad)), {}),
    "masked": (ripple, {}),
}


def gate_of(change, values, seed, folder):
    (folder / "policy.yaml").write_text(POLICY)
    values = FAST | values | {"seed": seed, "require": str(folder / "policy.yaml")}
    encoder = Wrapper(change).eval()
    return robustness(encoder, preset="quickstart", out=folder / "run", **values).metrics["gate"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", WEAK)
@pytest.mark.parametrize("seed", range(10))
def test_no_weakened_attack_passes(tmp_path, name, seed):
    change, values = WEAK[name]
    gate = gate_of(change, values, seed, tmp_path)
    assert gate["verdict"] == "UNDECIDED" and gate["reasons"], gate


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_a_working_attack_is_decided(tmp_path, seed):
    assert gate_of(lambda x: x, {}, seed, tmp_path)["verdict"] == "PASS"


def test_the_weakened_encoders_give_the_same_answers():
    images, encoder = torch.rand(2, 3, 32, 32), load_encoder("pocket")
    for name in ("ascent", "almost no gradient"):
        assert torch.equal(Wrapper(WEAK[name][0]).eval()(images), encoder(images)), name
