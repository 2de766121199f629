"""Decide the requirements of a policy on the rows and the record of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attacks.evaluation.clusters import Row, by_cluster
from attacks.evaluation.per_image import (
    cluster_column,
    cluster_weights,
    has_fit_rows,
    judged_rows,
    number_column,
    range_interval,
    span,
    with_a_value,
)
from attacks.gate.policy import ATTACK, HARM, P10_SHARE, Policy, Requirement
from attacks.gate.verdict import RANGE_REASON, RequirementResult, Verdict, Word, count_text
from attacks.inference.bounded import interval
from attacks.inference.plan import further_clusters

ATTACK_ARMS = ("no_eot", "one_view", "bare", "eot")
#: What a run without `no_eot` says of it.
ONE_ATTACK = "without views the attack is made once: ask for `arm: eot`"
#: The fewest gradients, or queries, of an attack whose loss can be seen to settle.
PLATEAU_GRADIENTS = 126
#: Why a bar that chance, or every encoder, meets says nothing.
AT_RANDOM, NEVER_FAILS = "an encoder that answers at random meets it", "no encoder can fail it"


def decide(policy: Policy, run: str, content: Mapping[str, Any], rows: Sequence[Row], sequential: bool) -> Verdict:
    """The verdict on each requirement, from the ends of its interval: PASS where the whole interval meets the bar,
    FAIL where none of it does, else UNDECIDED. A row passes, or fails, wrongly with a probability of at most 2.5 %.
    No row passes where the attack is weak or a check failed. Raises ValueError where the run lacks what a row needs.

    Args:
        run: its name.
        content: of metrics.json.
        rows: of per_image.csv, in the order of the attack; those of held-out pictures decide.
        sequential: by confidence sequences, which hold however often one looks at growing results."""
    reasons, rows = weaknesses(content), judged_rows(rows)
    decisions = [_not_beaten(decided_row(row, rows, sequential), rows) for row in policy.requirements]
    decisions = _beyond_chance(decisions, content)
    if reasons:  # more pictures of such an attack decide nothing
        note: dict[str, Any] = {"verdict": "UNDECIDED", "reason": "the attack or its record is not reliable"}
        decisions = [replace(row, more=None, **note if row.verdict == "PASS" else {}) for row in decisions]
    return Verdict(policy, run, tuple(decisions), reasons, sequential)


def weaknesses(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Why no row of a run can pass, from the content of its metrics.json."""
    reasons = check_faults(content)
    if (split := content.get("split")) is not None and not split["judge"]:
        reasons.append("the perturbation is judged on the pictures it was made from (docs/shared_perturbations.md)")
    if content["failed"]:
        reasons.append(f"{count_text(len(content['failed']), 'picture')} failed, and no table holds what failed")
    arms = dict.fromkeys(stronger_arms(content))
    return (*reasons, *(f"another attack ({arm}) is stronger than the one made for many views" for arm in arms))


def check_faults(content: Mapping[str, Any]) -> list[str]:
    """What the sanity checks of a run say against its attack."""
    if (sanity := content["sanity"]) is None:
        return ["the attack was not checked (sanity=none)"]
    names = sanity["failed"][:3] + [f"{n} more" for n in (len(sanity["failed"]) - 3,) if n > 0]
    noun = "check" if len(names) == 1 else "checks"
    faults = [f"the {noun} of the attack {', '.join(names)} failed"] if names else []
    skipped_checks = {check["name"]: check["words"] for check in sanity["checks"] if check["verdict"] == "skipped"}
    if len(skipped_checks) == len(sanity["checks"]):
        faults.append("no check of the attack was made")
    elif "plateau" in skipped_checks and not (
        skipped_checks["plateau"].startswith("not applicable") and content["threat"]["gradients"] >= PLATEAU_GRADIENTS
    ):
        faults.append("the attack is too short to show that its loss has settled (attack.gradients)")
    return faults


def stronger_arms(content: Mapping[str, Any]) -> list[str]:
    """The attacks whose difference to that with EOT excludes 0, by the primary measure: also by a range."""
    first = content["primary"]
    pairs = [(first["against"], first["difference"])]
    for row in content["comparisons"]:
        if (row["bank"], row["measure"]) == ("same", first["measure"]) and row["other"] in ATTACK_ARMS:
            pairs.append((row["other"], row["difference"]))
    is_share = first["measure"] == "success"
    return [arm for arm, row in pairs if (row["high"] < 0 if is_share else row["low"] > 0)]


def _beyond_chance(decisions: list[RequirementResult], content: Mapping[str, Any]) -> list[RequirementResult]:
    """The rows, UNDECIDED where every reachable value meets the bar, or an encoder that answers at random does."""
    decisions = [replace(row, **content.get("chance", {}).get(row.requirement.measure, {})) for row in decisions]
    reasons = [_empty_reason(row) for row in decisions]
    solid = any(row.verdict == "PASS" and not reason for row, reason in zip(decisions, reasons, strict=True))
    # Chance always meets a bar on these: such a row counts beside one that passes and that chance does not meet.
    relative = ("shift", "flagged", *(HARM if content["threat"]["targeted"] else ()))
    for i, (row, reason) in enumerate(zip(decisions, reasons, strict=True)):
        counts = not reason or (reason == AT_RANDOM and solid and row.requirement.measure in relative)
        if row.verdict != "FAIL" and not counts:
            reason = f"{RANGE_REASON}; {reason}" if row.has_range else reason
            decisions[i] = replace(row, verdict="UNDECIDED", reason=reason, more=None)
    return decisions


def _empty_reason(row: RequirementResult) -> str:
    """Why a row says nothing of an encoder that passes it, or nothing."""
    if row.chance is None or row.least is None or row.most is None:
        return "the run does not say what chance is: run it again"
    meets = row.requirement.meets
    if meets(row.least) and meets(row.most):
        return NEVER_FAILS
    return AT_RANDOM if meets(row.chance) else ""


def _not_beaten(decision: RequirementResult, rows: Sequence[Row]) -> RequirementResult:
    """UNDECIDED for a row on the worst cluster that the attack with EOT meets and another attack does not: one that
    breaks a cluster, whatever it does on average, shows that the encoder can be broken there."""
    requirement = decision.requirement
    if (decision.verdict, requirement.of, requirement.arm) != ("PASS", "worst", ATTACK):
        return decision
    for arm in ATTACK_ARMS[:-1]:
        other_rows = with_a_value(requirement.measure, _arm_rows(rows, requirement.bank, arm))
        if other_rows and decided_row(replace(requirement, arm=arm), other_rows, False).verdict != "PASS":
            note = f"the arm {arm} breaks a cluster that the attack with EOT does not"
            return replace(decision, verdict="UNDECIDED", reason=note)
    return decision


def _arm_rows(rows: Sequence[Row], bank: str, arm: str) -> list[Row]:
    return [row for row in rows if (row["bank"], row["arm"]) == (bank, arm)]


def decided_row(requirement: Requirement, rows: Sequence[Row], sequential: bool) -> RequirementResult:
    """A requirement on the rows of a run, whatever its attack is worth."""
    arm_rows = with_a_value(requirement.measure, _arm_rows(rows, requirement.bank, requirement.arm))
    measure = requirement.measure
    column = number_column(arm_rows, measure) if arm_rows and measure in arm_rows[0] else None
    if column is None:
        fix = f" ({ONE_ATTACK})" if requirement.arm == "no_eot" and not arm_rows else ""
        raise ValueError(f"`{requirement}`: the run has no {measure} of {requirement.arm} on that bank{fix}")
    values = by_cluster(column, cluster_column(arm_rows))
    size = (len(values), len(arm_rows))
    if requirement.of == "worst":
        worst = float(values.max() if requirement.at_least is None else values.min())
        word: Word = "PASS" if requirement.meets(worst) else "FAIL"
        reason = "for the pictures of this run alone" if word == "PASS" else ""
        return RequirementResult(requirement, word, worst, worst, worst, *size, reason=reason)
    bar, low, high = requirement, *span(measure)
    if requirement.of == "p10":
        values = (values <= requirement.bar if requirement.at_least is None else values >= requirement.bar).double()
        bar, low, high = Requirement(measure, requirement.arm, at_least=P10_SHARE), 0.0, 1.0
    weights = cluster_weights(arm_rows)
    ends = interval(values, low, high, weights=weights, sequential=sequential)
    word, further, reason = "UNDECIDED", None, ""
    if has_fit_rows(arm_rows):
        ends, reason = range_interval(ends.mean, values), RANGE_REASON
    elif bar.meets(ends.low) == bar.meets(ends.high):
        word = "PASS" if bar.meets(ends.low) else "FAIL"
    elif (clusters := further_clusters(values, bar.bar, low, high, weights, sequential)) is not None:
        further = math.ceil(clusters * size[1] / size[0])
    return RequirementResult(requirement, word, *ends[:3], *size, further, reason, weighted=weights is not None)
