"""The comparisons of the arms of a run: the primary one, declared before the run, and the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from attacks.evaluation.clusters import by_cluster, totals
from attacks.evaluation.intervals import Interval
from attacks.evaluation.per_image import Row, clusters_of, column_of, grouped, made_from, spread_of
from attacks.evaluation.significance import MEASURES, Measure, holm, needed, paired, paired_shares, sign_flip

#: The arm whose effect is tested, and the attacks without views that it is compared with in the primary comparison.
ARM, BASELINES = "eot", ("noise", "no_eot")
#: The bank of views of the primary comparison: of the attack's own distribution.
BANK = "same"


def declared(measure: str, split: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
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
    few clusters cannot give one below 0.05, and `needed` says how many could: twice as many where pictures would have
    to be held out.

    Args:
        rows: of the pictures that are judged (see `judged_rows`).
    """
    arms, fit = grouped(rows)[BANK], made_from(rows)
    own = _units(arms[ARM], measure)
    others = {name: _units(arms[name], measure) for name in BASELINES}
    better = 1 if measure == "success" else -1
    strongest = max(reversed(BASELINES), key=lambda name: better * float(others[name].mean()))
    result = difference(measure, own, others[strongest], _trials(arms[ARM]), fit)
    clusters = len(own)
    tested = clusters >= needed() and not fit
    return {
        "measure": measure,
        "arm": ARM,
        "against": strongest,
        "baselines": list(BASELINES),
        "bank": BANK,
        "difference": result._asdict(),
        "test": "sign flips",
        "p": max(sign_flip(own - other) for other in others.values()) if tested else None,
        "needed": None if tested else needed() * (1 + fit),
        "clusters": clusters,
    }


def secondary(rows: Sequence[Row], measure: Measure) -> list[dict[str, Any]]:
    """EOT against each other arm on each bank, without the primary comparison, which is in `measure`: the mean
    difference of `cosine` and of `success` with its interval, the p value of sign flips, and `p_holm`, corrected for
    all of the list.

    Where so few clusters cannot give a corrected p value below 0.05, both are None, and `needed` says how many could.
    """
    first, fit = primary(rows, measure), made_from(rows)
    table: list[dict[str, Any]] = []
    p_values: list[float] = []
    for bank, arms in grouped(rows).items():
        own = {each: _units(arms[ARM], each) for each in MEASURES}
        for other in sorted((arm for arm in arms if arm != ARM), key=lambda arm: arm != "one_view"):
            for each in MEASURES:
                key = {"measure": each, "arm": ARM, "other": other, "bank": bank}
                if all(first[name] == key[name] for name in ("measure", "bank")) and first["against"] == other:
                    continue
                units = _units(arms[other], each)
                result = difference(each, own[each], units, _trials(arms[ARM]), fit)
                table.append(key | {"difference": result._asdict(), "test": "sign flips"})
                p_values.append(sign_flip(own[each] - units))
    tested = first["clusters"] >= needed(len(table)) and not fit
    few = None if tested else needed(len(table)) * (1 + fit)
    corrected = holm(p_values)
    return [
        row | {"p": p if tested else None, "p_holm": p_holm if tested else None, "needed": few}
        for row, p, p_holm in zip(table, p_values, corrected, strict=True)
    ]


def difference(measure: str, one: Tensor, other: Tensor, trials: Tensor | int, fit: bool = False) -> Interval:
    """The mean difference of two arms, or two runs, from each cluster's share of successes among its `trials` views,
    or from its mean of any other measure, (C,); with its range where an attack was made from these clusters."""
    if fit:
        return spread_of(float((one - other).mean()), one - other)
    return paired_shares(one, other, trials) if measure == "success" else paired(one, other)


def _units(rows: Sequence[Mapping[str, object]], measure: Measure) -> Tensor:
    """The mean of each cluster, (C,)."""
    column = column_of(rows, measure)
    assert column is not None
    return by_cluster(column, clusters_of(rows))


def _trials(rows: Sequence[Mapping[str, object]]) -> Tensor:
    """The number of views of each cluster's pictures, (C,)."""
    views = column_of(rows, "views")
    assert views is not None
    return totals(views, clusters_of(rows))
