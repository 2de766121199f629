"""The warnings of a run agree with one another, with the gate and with the numbers, over a grid of contents."""

import itertools
import random
import re

import pytest

from attacks.gate.decide import weaknesses
from attacks.report.warnings import HIGH, warnings
from tests.helpers import report_pages

SHARES = (0.0, 0.3, 0.6, 0.89, 0.97)
NO_CHECKS = {"failed": [], "checks": [{"name": "plateau", "verdict": "skipped", "words": "too few looks"}]}
PASSED = report_pages.sanity() | {"failed": []}
#: What a manager need not know, and what no warning may say of an encoder.
JARGON = re.compile(r"\b(EOT|arms?|banks?|robust|[A-Z]{3,})\b")
VERBS = ("mend", "read", "do what", "turn", "take", "set", "lower", "give", "name")
#: What nobody can do at once.
OPPOSITES = (("larger eps", "lower eps"), ("read the lost views", "read its shift"))
GRID = {
    "success": [*itertools.product(SHARES, SHARES, SHARES, SHARES)],  # noise, no_eot, one_view, eot
    "cosine": [(0.9, 0.5, 0.5, 0.2), (0.5, 0.5, 0.1, 0.5)],
    "clean": [(1.0, 0.9), (0.5, 0.9), (0.5, 0.5), (1.0, 0.6), (None, 0.6)],  # recall@1, cosine
    "budget": [0.1, 1.0],
    "chance": [0.5, 0.99],
    "objective": [("away", False), ("retrieval", False), ("toward", True)],
    "sanity": [None, NO_CHECKS, PASSED, report_pages.sanity()],
    "weights": [None, "random"],
    "failed": [[], [{"picture": i, "name": f"{i}.png", "reason": "NaN"} for i in range(5)]],
    "ahead": [[], ["one_view"]],
    "others": [{}, {"guessed": 2, "failed_parts": {"response": "out of memory"}}],
}


def content(cell):
    result = report_pages.content(chance={"success": report_pages.level(cell["chance"])})
    for i, arm in enumerate(("noise", "no_eot", "one_view", "eot")):
        result["arms"][arm] |= {key: report_pages.interval(cell[key][i]) for key in ("success", "cosine")}
    gap = cell["success"][3] - max(cell["success"][:2])
    result["primary"] |= {"difference": report_pages.interval(gap, 0.1)}
    clean = (value and report_pages.interval(value) for value in cell["clean"])
    result["arms"]["clean"] |= dict(zip(("recall_at_1", "cosine"), clean, strict=True))
    result["arms"]["eot"]["budget_used"] = cell["budget"]
    result["threat"] |= dict(zip(("objective", "targeted"), cell["objective"], strict=True))
    result["encoder"] |= {"weights": cell["weights"]}
    behind = {"measure": "success", "bank": "same", "difference": report_pages.interval(-0.15, 0.05)}
    result["comparisons"] = [behind | {"other": arm} for arm in cell["ahead"]]
    return result | {key: cell[key] for key in ("sanity", "failed")} | cell["others"]


@pytest.fixture(scope="module")
def cells():
    draws = random.Random(0)
    return [content({key: draws.choice(values) for key, values in GRID.items()}) for _ in range(600)]


def test_each_line_is_a_fact_and_what_to_do_in_plain_words(cells):
    causes = set()
    for lines in map(warnings, cells):
        assert len(lines) <= 6
        advice = [line.rpartition(": ")[2] for line in lines]
        assert all(text.startswith(VERBS) for text in advice) and len({*advice}) == len(advice), lines
        assert not any(JARGON.search(line) for line in lines), lines
        text = " ".join(lines)
        assert not any(first in text and second in text for first, second in OPPOSITES), lines
        causes |= {re.sub(r"\d.*|\(.*", "", line) for line in lines}
    assert len(causes) == 8  # the grid meets every cause


def test_no_line_doubts_what_the_numbers_show(cells):
    for metrics in cells:
        arms, lines = metrics["arms"], warnings(metrics)
        rows = [row[key] for row in arms.values() for key in ("success", "cosine", "recall_at_1") if row[key]]
        numbers = {f"{row['mean']:.2f}" for row in rows} | {f"{metrics['chance']['success']['chance']:.2f}"}
        assert {*re.findall(r"\b\d\.\d\d\b", " ".join(lines))} <= numbers, lines
        doubts = [line for line in lines if re.search("stronger attack|gallery|too low", line)]
        checks_failed = bool((metrics["sanity"] or {}).get("failed"))
        assert not doubts or arms["eot"]["success"]["mean"] < HIGH or checks_failed, lines
        ahead = max(arms[arm]["success"]["mean"] for arm in ("no_eot", "one_view")) - arms["eot"]["success"]["mean"]
        if metrics["encoder"]["weights"] != "random" and arms["eot"]["success"]["mean"] < HIGH:
            # Whatever keeps a gate from a PASS, and every other attack that is visibly ahead, has a warning.
            reasons = [reason for reason in weaknesses(metrics) if "attack" in reason or "check" in reason]
            assert bool(doubts) >= (bool(reasons) or ahead > 0.05)
            assert ("one view a step" in " ".join(doubts)) >= any("one_view" in reason for reason in reasons)


@pytest.mark.parametrize(("clean", "bare", "eot"), [*itertools.product((0.05, 0.3), SHARES[:4], SHARES[:4])])
def test_a_defence_that_an_attack_on_the_bare_encoder_helps_or_that_hides_its_gradient_is_told(clean, bare, eot):
    content = report_pages.content(sanity=PASSED)
    content["arms"]["bare"] = dict(content["arms"]["no_eot"])
    for arm, value in (("clean", clean), ("bare", bare), ("eot", eot)):
        content["arms"][arm] |= {"success": report_pages.share(value), "cosine": report_pages.interval(1 - value)}
    text = " ".join(warnings(content))
    assert ("do not test the defence" in text) == (bare < clean)
    assert ("gains nothing over an attack on the bare encoder" in text) == (bare == eot)
    assert ("an attack on the bare encoder reaches" in text) == (bare > eot)


def test_a_whole_run_has_no_warning_but_that_of_its_failed_check():
    (line,) = warnings(report_pages.content())
    assert "masking failed" in line and "0.93 may be too low" in line
    assert warnings(report_pages.content(sanity=PASSED)) == []
    (line,) = warnings(report_pages.content(sanity=PASSED | {"failed": list("abcde")}))
    assert "the checks of the attack a, b, c, 2 more failed" in line
