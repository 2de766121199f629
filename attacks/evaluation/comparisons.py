"""The comparisons of the arms of a run: the primary one, declared before the run, and the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from attacks.evaluation.clusters import Row, by_cluster, column_of, totals
from attacks.evaluation.intervals import Interval
from attacks.evaluation.per_image import cluster_column, has_fit_rows, range_interval, rows_by_arm
from attacks.evaluation.significance import (
    MEASURES,
    Measure,
    fewest_clusters,
    holm,
    mean_difference,
    paired_shares,
    sign_flip,
)

#: The arm whose effect is tested, and the attacks without views that it is compared with in the primary comparison.
ARM, BASELINES = "eot", ("noise", "no_eot")
#: The bank of views of the primary comparison: of the attack's own distribution.
BANK = "same"


def declaration(measure: str, split: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """The primary comparison as it is declared before the run, for manifest.json. `split`: of a shared perturbation
    the pictures that it is made from and those held out, which are compared."""
    return ({} if split is None else {"split": split}) | {
        "measure": measure,
        "arm": ARM,
        "baselines": list(BASELINES),
        "bank": BANK,
        "test": "sign flips of clusters; the largest p over the baselines, the difference to the strongest",
    }


def primary(rows: Sequence[Row], measure: Measure) -> dict[str, Any]:
    """The primary comparison: EOT against the strongest attack without views, from rows of per_image.csv.

    The strongest has the most success, or the lowest cosine. The p value is the largest over all baselines: an
    intersection-union test (Berger 1982), in which choosing the strongest needs no correction. It is None where so
    few clusters cannot give one below 0.05, and `needed` says how many could. The rows are those of `judged_rows`."""
    arms, fit = rows_by_arm(rows)[BANK], has_fit_rows(rows)
    arm_units, better = _units(arms[ARM], measure), 1 if measure == "success" else -1
    baseline_units = {name: _units(arms[name], measure) for name in BASELINES}
    strongest = max(reversed(BASELINES), key=lambda name: better * float(baseline_units[name].mean()))
    result = difference(measure, arm_units, baseline_units[strongest], _trials(arms[ARM]), fit)
    clusters = len(arm_units)
    testable = clusters >= fewest_clusters() and not fit
    return {
        "measure": measure,
        "arm": ARM,
        "against": strongest,
        "baselines": list(BASELINES),
        "bank": BANK,
        "difference": result._asdict(),
        "test": "sign flips",
        "p": max(sign_flip(arm_units - other) for other in baseline_units.values()) if testable else None,
        "needed": None if testable else fewest_clusters() * (1 + fit),
        "clusters": clusters,
    }


def secondary(rows: Sequence[Row], measure: Measure) -> list[dict[str, Any]]:
    """EOT against each other arm on each bank, without the primary comparison, which is in `measure`: the mean
    difference of `cosine` and of `success`, the p value of sign flips, and `p_holm`, corrected for all of the list;
    both None where so few clusters cannot give one below 0.05, and `needed` says how many could."""
    first, fit = primary(rows, measure), has_fit_rows(rows)
    table: list[dict[str, Any]] = []
    p_values: list[float] = []
    for bank, arms in rows_by_arm(rows).items():
        arm_units = {quantity: _units(arms[ARM], quantity) for quantity in MEASURES}
        for other in sorted((arm for arm in arms if arm != ARM), key=lambda arm: arm != "one_view"):
            for quantity in MEASURES:
                key = {"measure": quantity, "arm": ARM, "other": other, "bank": bank}
                if all(first[name] == key[name] for name in ("measure", "bank")) and first["against"] == other:
                    continue
                units = _units(arms[other], quantity)
                result = difference(quantity, arm_units[quantity], units, _trials(arms[ARM]), fit)
                table.append(key | {"difference": result._asdict(), "test": "sign flips"})
                p_values.append(sign_flip(arm_units[quantity] - units))
    testable = first["clusters"] >= fewest_clusters(len(table)) and not fit
    clusters_needed = None if testable else fewest_clusters(len(table)) * (1 + fit)
    holm_values = holm(p_values)
    return [
        row | {"p": p if testable else None, "p_holm": p_holm if testable else None, "needed": clusters_needed}
        for row, p, p_holm in zip(table, p_values, holm_values, strict=True)
    ]


def difference(measure: str, first: Tensor, second: Tensor, trials: Tensor | int, fit: bool = False) -> Interval:
    """The mean difference of two arms, or two runs, (C,): of shares of successes among `trials` views, or of means of
    any other measure; with its range where an attack was made from these clusters."""
    if fit:
        return range_interval(float((first - second).mean()), first - second)
    return paired_shares(first, second, trials) if measure == "success" else mean_difference(first, second)


def _units(rows: Sequence[Mapping[str, object]], measure: Measure) -> Tensor:
    return by_cluster(column_of(rows, measure), cluster_column(rows))


def _trials(rows: Sequence[Mapping[str, object]]) -> Tensor:
    """The number of views of each cluster's pictures, (C,)."""
    return totals(column_of(rows, "views"), cluster_column(rows))
