"""The first words of a page: few words and numbers, none of them the laboratory's, whatever the run's result is."""

import re
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.evaluation.per_image import MEANS, SHARES
from attacks.gate.decide import AT_RANDOM
from attacks.inference import sign_flips
from attacks.report.answer import NOT_HELD_OUT, answer, first_numbers
from attacks.report.facts import encoder_name, least_p_note
from attacks.report.warnings import GALLERY, TASK, WEIGHTS
from attacks.report.words import FATES
from attacks.schema.task import OBJECTIVES
from tests.helpers import report_pages

JARGON = re.compile(r"\b(eot|arms?|banks?|clusters?)\b", re.IGNORECASE)


def words(text):
    return len([word for word in text.split() if re.search(r"\w", word)])


def numbers(text):
    return len(re.findall(r"\d+(?:\.\d+)?", text))


def gate_of(verdict="FAIL", measure="success", value=0.8, reasons=(), **changes):
    """The section `gate` of metrics.json with one row."""
    row = {"measure": measure, "arm": "eot", "bank": "same", "of": "mean", "at_least": None, "at_most": None}
    row["at_most" if measure.startswith(("succ", "goal")) else "at_least"] = 0.5
    row |= {key: changes.pop(key) for key in ("arm", "bank", "of") if key in changes}
    ends = {"value": value, "low": max(0.0, value - 0.123456), "high": min(1.0, value + 0.123456)}
    result = {"requirement": row, "verdict": verdict, "more": None, "reason": "", "text": "", "chance": None} | ends
    return {"verdict": verdict, "rows": [result | changes], "reasons": list(reasons), "policy": {"claim": "A claim."}}


def check_length(content):
    result = answer(content)
    assert words(result.verdict) <= 15 and words(result.reason) <= 25 and words(result.comparison) <= 25, result
    assert numbers(result.verdict) + numbers(result.reason) <= 4 and numbers(result.comparison) <= 4, result
    assert not JARGON.search(" ".join(vars(result).values())), result
    assert result.reason.endswith(".") and result.step
    assert words(result.headline) <= 25 and numbers(result.headline) <= 2, result.headline
    shares = first_numbers(content)
    assert len(shares) == 3 and all(words(sentence) <= 20 for _, sentence, _ in shares), shares
    if not result.verdict:  # the sentence has numbers of the three
        assert {*re.findall(r"[\d.]+ %", result.headline)} <= {share for share, *_ in shares}, (result, shares)
    return result


@given(
    st.sampled_from(["PASS", "FAIL", "UNDECIDED", None]),
    st.sampled_from([*MEANS, *SHARES, "tar_0.01"]),
    st.sampled_from(["clean", "noise", "no_eot", "eot"]),
    st.sampled_from(["same", "wide"]),
    st.sampled_from(["mean", "p10", "worst"]),
    st.floats(0, 1),
    st.sampled_from(["", AT_RANDOM]),
    st.sampled_from([None, 1, 123456]),
    st.booleans(),
    st.sampled_from([*FATES]),
)
def test_the_first_words_are_few_and_plain(verdict, measure, arm, bank, of, value, reason, extra, targeted, task):
    content = report_pages.content()
    content["threat"] |= {"targeted": targeted, "task": task}
    content["arms"]["clean"]["recall_at_1"]["mean"] = 1 - value
    if verdict:
        gate = gate_of(verdict, measure, value, arm=arm, bank=bank, of=of, reason=reason, more=extra)
        content["gate"] = gate
    result = check_length(content)
    starts = {"PASS": ("May be deployed", "Meets its policy"), "FAIL": ("Do not deploy",), None: ("",)}
    assert result.verdict.startswith(starts.get(verdict, ("Undecided",)))


def test_the_comparison_follows_its_p_value_and_its_sign():
    content = report_pages.content()
    assert check_length(content).comparison == (
        "An attack made for many views beats one made for the file alone: +48 points (+36 to +60), p 0.0024."
    )
    comparison = content["primary"]
    for change, part in (
        ({"p": 0.05}, "is not shown to differ from"),
        ({"difference": report_pages.interval(-0.3)}, "is weaker than"),
        (
            {"measure": "cosine", "against": "noise", "difference": report_pages.interval(-0.3)},
            "beats random noise: -0.30",
        ),
        ({"p": None, "needed": 6, "clusters": 2}, "is undecided: 4 more pictures needed"),
    ):
        assert part in check_length(content | {"primary": comparison | change}).comparison


def test_the_smallest_p_is_that_of_clusters_which_all_agree():
    content = report_pages.content()
    clusters = len({*content["clusters"]})
    p = sign_flips(torch.arange(1.0, 1 + clusters), torch.zeros(clusters), 2).p
    for values, note in (([p, 0.5], True), ([2 * p, None], False), ([p / 2, None], True)):
        rows = [{"p": value} for value in values]
        assert bool(least_p_note(content | {"comparisons": rows})) == note


@pytest.mark.parametrize(("task", "targeted"), [*product(FATES, (False, True))])
def test_of_a_defence_both_attacks_are_in_the_first_sentence(task, targeted):
    content = report_pages.content()
    content["threat"] |= {"task": task, "targeted": targeted}
    content["arms"]["clean"]["recall_at_1"] = report_pages.share(0.95)
    content["arms"]["bare"] = content["arms"]["no_eot"] | {"recall_at_1": report_pages.share(0.7125)}
    is_right = not targeted and task != "verification"
    key, word = ("recall_at_1", FATES[task][2]) if is_right else ("success", FATES[task][targeted])
    shares = [f"{100 * content['arms'][arm][key]['mean']:.0f} %" for arm in ("bare", "eot")]
    sentence = check_length(content).reason
    assert re.fullmatch(rf"Made on the bare encoder, .* {shares[0]} .*{word}; .* defence, {shares[1]} .*", sentence)
    judged = check_length(content | {"gate": gate_of()})
    assert judged.comparison == sentence and judged.reason != sentence
    for arm, mean in (("bare", 0.2), ("eot", 0.9), ("clean", 0.1)):  # of a detector what it accepts
        content["arms"][arm] |= {"fooled_accepted": report_pages.share(mean)}
    assert "success, and is not flagged, in 20 % of views; through the defence, 90 %" in check_length(content).reason


def test_a_task_has_words_of_its_own():
    assert FATES.keys() == OBJECTIVES.keys()
    content = report_pages.content()
    for task, (fate, target, right) in FATES.items():
        threat = content["threat"] | {"task": task}
        assert f"camera views are {fate}; before" in answer(content | {"threat": threat}).reason
        assert f"are {target}; before" in answer(content | {"threat": threat | {"targeted": True}}).reason
        gate = gate_of(measure="recall_at_1", value=0.3)
        assert f"of camera views are {right}; at least" in answer(content | {"threat": threat, "gate": gate}).reason


def test_numbers_are_those_of_the_tables_and_of_the_requirement():
    content = report_pages.content()
    assert answer(content).reason == (
        "After the attack, 93 % (89-97 %) of unseen camera views are taken for something else; before it, 2 %."
    )
    assert "the attacker's target" in answer(content | {"threat": content["threat"] | {"targeted": True}}).reason
    assert "of pictures are" in answer(content | {"bank": content["bank"] | {"coordinates": []}}).reason
    assert answer(content).limits.startswith("With 12 independent pictures, up to 22 % of all pictures may behave")
    assert f"{NOT_HELD_OUT}." in answer(content | {"split": {"judge": [], "arms": None}}).limits
    weights = {name: 1 - 0.5 * (i > 0) for i, name in enumerate(dict.fromkeys(content["clusters"]))}
    pulled = check_length(content | {"weights": [weights[name] for name in content["clusters"]]}).limits
    assert "up to 41 % of the traffic" in pulled and "Means are weighted by `weight`" in pulled  # 22.1 * 12 / 6.5
    failure = check_length(content | {"gate": gate_of()})
    assert f"{failure.verdict} {failure.reason}" == (
        "Do not deploy: the attack succeeds too often. After the attack, 80 % (68-92 %) of camera views are taken "
        "for something else; at most 50 % is allowed."
    )
    faulty = check_length(content | {"gate": gate_of("PASS") | {"notes": ["the bars came later"]}})
    assert faulty.verdict == "Meets its policy, yet says little: its record has faults, see below."
    undecided = check_length(content | {"gate": gate_of("UNDECIDED", more=40)})
    assert f"{undecided.verdict} {undecided.reason}" == (
        "Undecided: about 40 more pictures are needed. After the attack, 68-92 % of camera views are taken for "
        "something else; at most 50 % is allowed."
    )


@pytest.mark.parametrize(("flaw", "verdict"), [*product((TASK, GALLERY, WEIGHTS), ("PASS", "FAIL", "UNDECIDED"))])
def test_a_broken_gallery_or_task_is_in_the_verdict(flaw, verdict):
    content = report_pages.content(gate=gate_of(verdict, value=0.4))
    if flaw == TASK:
        content["arms"]["clean"]["recall_at_1"]["mean"] = 0.5
    elif flaw == GALLERY:
        content["chance"] = report_pages.CHANCE | {"success": report_pages.level(0.8)}
        content["arms"]["eot"]["success"]["mean"] = 0.4
    else:
        content["encoder"]["weights"] = "random"
    text = "the gallery is small" if (flaw, verdict) == (GALLERY, "FAIL") else flaw
    assert text in check_length(content).verdict


def test_a_module_is_named_by_its_class():
    content = report_pages.content()
    assert encoder_name(content) == "pocket"
    content["encoder"] |= {"name": "module", "model": "Net"}
    assert encoder_name(content) == "Net"
