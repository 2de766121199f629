"""Decide the requirements of a policy on the rows and the record of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when first used
from numpy.typing import NDArray
from torch import Tensor

from attacks.evaluation.clusters import Row, by_cluster
from attacks.evaluation.intervals import FEWEST_MEANS, FEWEST_SHARES, array
from attacks.evaluation.per_image import (
    MEANS,
    cluster_column,
    has_fit_rows,
    judged_rows,
    measure_summary,
    number_column,
    with_a_value,
)
from attacks.gate.policy import ATTACK, HARM, P10_SHARE, Policy, Requirement, span
from attacks.gate.verdict import RANGE_REASON, RequirementResult, Verdict, Word

#: A number of further pictures above this is no plan.
MAX_PICTURES = 1_000_000
#: The arms whose values depend on an attack.
ATTACK_ARMS = ("no_eot", "one_view", "eot")
#: Why a bar that chance meets says nothing.
AT_RANDOM = "an encoder that answers at random meets it"

#: The means that are tried.
GRID = 2001
#: The error on each side, and the largest share of its capital that a bet may lose.
ALPHA, BOLDEST = 0.025, 0.75


class BoundedMean(NamedTuple):
    """A value with the ends of its 95 % interval; without `has_interval` of a range, for too few clusters."""

    value: float
    low: float
    high: float
    has_interval: bool = True


def decide(policy: Policy, run: str, content: Mapping[str, Any], rows: Sequence[Row], sequential: bool) -> Verdict:
    """The verdict on each requirement, from the ends of its interval: PASS where the whole interval meets the bar,
    FAIL where none of it does, else UNDECIDED. A row passes, or fails, wrongly with a probability of at most 2.5 %.
    No row passes where the attack is weak or a check failed.

    Args:
        run: its name.
        content: of metrics.json.
        rows: of per_image.csv, in the order of the attack; those of held-out pictures decide.
        sequential: by confidence sequences, which hold however often one looks at growing results.

    Raises ValueError where the run lacks what a row asks for.
    """
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
        reasons.append(f"{len(content['failed'])} of the pictures failed and are in no table")
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
    elif not skipped_checks.get("plateau", "not applicable").startswith("not applicable"):
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


def _beyond_chance(decisions: Sequence[RequirementResult], content: Mapping[str, Any]) -> list[RequirementResult]:
    """The rows, UNDECIDED where every reachable value meets the bar, or an encoder that answers at random does."""
    decisions = [replace(row, **content.get("chance", {}).get(row.requirement.measure, {})) for row in decisions]
    reasons = [_empty_reason(row) for row in decisions]
    solid = any(row.verdict == "PASS" and not reason for row, reason in zip(decisions, reasons, strict=True))
    # Chance always meets a bar on these: such a row counts beside one that passes and that chance does not meet.
    relative = ("shift", *(HARM if content["threat"]["targeted"] else ()))
    result = []
    for row, reason in zip(decisions, reasons, strict=True):
        counts = not reason or (reason == AT_RANDOM and solid and row.requirement.measure in relative)
        if row.verdict != "FAIL" and not counts:
            reason = f"{RANGE_REASON}; {reason}" if row.has_range else reason
            row = replace(row, verdict="UNDECIDED", reason=reason, more=None)
        result.append(row)
    return result


def _empty_reason(row: RequirementResult) -> str:
    """Why a row says nothing of an encoder that passes it, or nothing."""
    if row.chance is None or row.least is None or row.most is None:
        return "the run does not say what chance is: run it again"
    meets = row.requirement.meets
    if meets(row.least) and meets(row.most):
        return "no encoder can fail it"
    return AT_RANDOM if meets(row.chance) else ""


def _not_beaten(decision: RequirementResult, rows: Sequence[Row]) -> RequirementResult:
    """A row on the worst cluster of the attack with EOT passes only if that of each other attack meets the bar, too;
    else it is undecided. Whatever they do on average, one that breaks a cluster shows that the encoder can be broken
    there."""
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
    column = number_column(arm_rows, requirement.measure) if arm_rows and requirement.measure in arm_rows[0] else None
    if column is None:
        raise ValueError(f"`{requirement}`: the run has no {requirement.measure} of {requirement.arm} on that bank")
    values = by_cluster(column, cluster_column(arm_rows))
    size = (len(values), len(arm_rows))
    if requirement.of == "worst":
        worst = float(values.max() if requirement.at_least is None else values.min())
        word: Word = "PASS" if requirement.meets(worst) else "FAIL"
        reason = "for the pictures of this run alone" if word == "PASS" else ""
        return RequirementResult(requirement, word, worst, worst, worst, *size, reason=reason)
    if requirement.of == "p10":
        sides = values <= requirement.bar if requirement.at_least is None else values >= requirement.bar
        share = Requirement(requirement.measure, requirement.arm, at_least=P10_SHARE)
        if sequential:
            estimate = _sequential(sides.double(), 0, 1)
        else:  # the interval of Clopper & Pearson (1934)
            ends = scipy.stats.binomtest(hits := int(sides.sum()), len(sides)).proportion_ci(0.95, "exact")
            estimate = BoundedMean(hits / len(sides), float(ends.low), float(ends.high))
        estimate = estimate._replace(has_interval=not has_fit_rows(arm_rows))
        return _decision(requirement, share, estimate, size)
    if sequential:
        estimate = _sequential(values, *span(requirement.measure))
    elif len(values) == 1:
        value = float(values[0])
        estimate = BoundedMean(value, value, value, has_interval=False)
    else:
        interval = measure_summary(requirement.measure, arm_rows)
        assert interval is not None
        mean, low, high = (float(str(interval[key])) for key in ("mean", "low", "high"))
        estimate = BoundedMean(mean, low, high, interval["kind"] == "interval")
    return _decision(requirement, requirement, estimate, size)


def _decision(
    requirement: Requirement, bar: Requirement, estimate: BoundedMean, size: tuple[int, int]
) -> RequirementResult:
    value, low, high, has_interval = estimate
    clusters, pictures = size
    word: Word = "UNDECIDED"
    extra = None
    if not has_interval:
        fewest = FEWEST_MEANS if requirement.measure in MEANS and requirement.of == "mean" else FEWEST_SHARES
        extra = math.ceil((fewest - clusters) * pictures / clusters) if clusters < fewest else None
    elif bar.meets(low) == bar.meets(high):
        word = "PASS" if bar.meets(low) else "FAIL"
    elif value != bar.bar:
        side = high - value if bar.bar > value else value - low
        factor = (side / abs(value - bar.bar)) ** 2
        extra = math.ceil(pictures * (factor - 1)) if 1 < factor < MAX_PICTURES / pictures else None
    reason = "" if has_interval else RANGE_REASON
    return RequirementResult(requirement, word, value, low, high, clusters, pictures, extra, reason)


def _sequential(values: Tensor, low: float, high: float) -> BoundedMean:
    """The mean of values in [low, high] with the ends of its confidence sequence after the last."""
    units, scale = array(values).clip(low, high), high - low  # a cosine in float32 may be 1 + 1e-7
    lows, highs = confidence_sequence((units - low) / scale)
    mean = float(units.mean())
    return BoundedMean(mean, min(low + scale * float(lows[-1]), mean), max(low + scale * float(highs[-1]), mean))


def confidence_sequence(
    values: NDArray[np.float64], alpha: float = ALPHA
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends (n+1,) of the intervals of a mean after 0, 1, ..., n of the `values` (n,) in [0,1].

    Each side misses the mean of exchangeable draws at any of the looks with a probability of at most `alpha`. For
    each possible mean m a gambler bets that the values are larger, and one that they are smaller; the capital
    prod(1 + lambda_t (x_t - m)) of either grows to 1 / alpha with a probability of at most `alpha` if m is the mean
    (Ville's inequality). The bets are the predictable plug-in of Waudby-Smith & Ramdas (2023, JRSS-B 86, eq. 26):
    sqrt(2 log(1 / alpha) / (v t log(1 + t))) with the variance v of the values before.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(f"`values` must lie in 0..1; got {values.min():g} to {values.max():g}")
    n, t = len(values), np.arange(1, len(values) + 1)
    mean = (0.5 + np.cumsum(values)) / (t + 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (t + 1)
    previous = np.concatenate([[0.25], variance[:-1]]) if n else variance
    bets = np.sqrt(2 * math.log(1 / alpha) / (previous * t * np.log1p(t)))
    means = np.linspace(0, 1, GRID)
    lows, highs = np.zeros(n + 1), np.ones(n + 1)
    above, below = np.zeros(GRID), np.zeros(GRID)  # the logarithms of the capitals
    limit = math.log(1 / alpha)
    with np.errstate(divide="ignore"):
        most_above, most_below = BOLDEST / means, BOLDEST / (1 - means)
    for i, (x, bet) in enumerate(zip(values, bets, strict=True)):
        above += np.log1p(np.minimum(bet, most_above) * (x - means))
        below += np.log1p(-np.minimum(bet, most_below) * (x - means))
        # A capital falls, or rises, with m: the means that it refutes lie at one end.
        above_limit, below_limit = np.flatnonzero(above >= limit), np.flatnonzero(below >= limit)
        lows[i + 1] = max(lows[i], means[above_limit[-1]] if len(above_limit) else 0.0)
        highs[i + 1] = min(highs[i], means[below_limit[0]] if len(below_limit) else 1.0)
    return lows, highs
