"""The rows of per_image.csv, one for each bank of views, arm and picture, and the tables computed from them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attacks.evaluation.intervals import Interval, interval, median, quantile, rate
from attacks.evaluation.scores import Scores
from attacks.evaluation.significance import MEASURES, compared, holm

#: Measures summarised by their mean over pictures; shares of a picture's views; and ranks, summarised by the median.
MEANS = ("cosine", "worst_cosine", "shift", "cosine_p10", "mrr", "goal_cosine")
SHARES = ("recall_at_1", "recall_at_5", "recall_at_10", "success", "knn")
MEDIANS = ("median_rank", "goal_rank")
#: The measures in the order of the file.
COLUMNS = ["cosine", "shift", "cosine_p10", "worst_cosine", "recall_at_1", "recall_at_5", "recall_at_10", "mrr"]
COLUMNS += ["median_rank", "success", "knn", "goal_rank", "goal_cosine"]
#: Prefix of the columns with true accept rates; the false accept rate follows.
TAR = "tar_"
#: The quantile `cosine_p10`.
LOW = 0.1

Row = Mapping[str, object]


def per_image_rows(
    scores: Mapping[str, Mapping[str, Scores]],
    success: Mapping[str, Mapping[str, Tensor]],
    worst: Mapping[str, Mapping[str, Tensor]],
    *,
    pictures: Sequence[str],
    identities: Sequence[str],
    thresholds: Mapping[float, float],
) -> list[dict[str, object]]:
    """One row for each bank, arm and picture, with means over its views, whose number is in `views`: `cosine` to the
    picture's clean embedding; `shift`, the cosine minus that of the clean arm in the same view; `cosine_p10`, the
    10th percentile; `worst_cosine`; the shares `recall_at_1`, `recall_at_5`, `recall_at_10`, `success` (of the
    attacker), `knn` and `tar_0.01`, ... (accepted as the picture at that false accept rate); `mrr`, the mean of 1 /
    rank; `median_rank`, the lower median; with a target also `goal_cosine` and the lower median `goal_rank`. None
    where the run has no such measure.

    Args:
        scores: by bank and arm, of the same pictures; one arm is `clean`.
        success: by bank and arm (N,V) bool.
        worst: by bank and arm the cosine (N,) in the view that resists the attacker most.
        pictures: N names.
        identities: N labels.
        thresholds: of verification, by false accept rate.
    """
    rows = []
    for bank, arms in scores.items():
        for arm, arm_scores in arms.items():
            values = _values(arm_scores, arms["clean"], success[bank][arm])
            columns = _columns(values, worst[bank][arm]) | {
                f"{TAR}{far:g}": (arm_scores.cosine.double() >= limit).double().mean(1).tolist()
                for far, limit in thresholds.items()
            }
            for i, (picture, identity) in enumerate(zip(pictures, identities, strict=True)):
                row: dict[str, object] = {"bank": bank, "arm": arm, "picture": picture, "identity": identity}
                row["views"] = arm_scores.cosine.shape[1]
                rows.append(row | {name: column and column[i] for name, column in columns.items()})
    return rows


def _values(scores: Scores, clean: Scores, success: Tensor) -> dict[str, Tensor]:
    """The known measures of each view of each picture, (N,V) in float64."""
    if scores.rank is None:
        raise ValueError("`scores` have no ranks; call `evaluate` with `right`, the ground truth")
    columns = {
        "cosine": scores.cosine,
        "shift": scores.cosine.double() - clean.cosine.double(),
        "rank": scores.rank,
        "mrr": scores.rank.double().reciprocal(),
        **{f"recall_at_{k}": scores.rank <= k for k in (1, 5, 10)},
        "success": success,
        "knn": scores.vote,
        "goal_rank": scores.goal_rank,
        "goal_cosine": scores.goal_cosine,
    }
    return {name: value.double() for name, value in columns.items() if value is not None}


def _columns(values: Mapping[str, Tensor], worst: Tensor) -> dict[str, list[float] | None]:
    """The columns of the file: one number for each picture."""
    columns = {name: value.mean(1) for name, value in values.items()}
    columns |= {"cosine_p10": values["cosine"].quantile(LOW, 1), "worst_cosine": worst.double()}
    for name, key in (("median_rank", "rank"), ("goal_rank", "goal_rank")):
        if key in values:
            columns[name] = values[key].median(1).values
    return {name: columns[name].tolist() if name in columns else None for name in COLUMNS}


def arms_table(
    rows: Sequence[Row], *, views: Mapping[str, tuple[Mapping[str, Scores], Mapping[str, Tensor]]] | None = None
) -> dict[str, dict[str, dict[str, object]]]:
    """By bank, arm and measure the mean over pictures, or median, with its 95 % interval; `tar` by false accept rate.
    None where the rows have none.

    Args:
        rows: of `per_image_rows`, or read back from their file.
        views: for a run of a single picture, whose intervals are over its views: by bank the scores and successes by
            arm.
    """
    table: dict[str, dict[str, dict[str, object]]] = {}
    for bank, arms in _grouped(rows).items():
        table[bank] = {arm: _measures(arm_rows) for arm, arm_rows in arms.items()}
        if views is not None:
            scores, success = views[bank]
            for arm, arm_scores in scores.items():
                table[bank][arm] |= _single(_values(arm_scores, scores["clean"], success[arm]))
    return table


def _measures(rows: Sequence[Row]) -> dict[str, object]:
    """The measures of one arm on one bank."""
    measures: dict[str, object] = {}
    for name in (*MEANS, *SHARES, *MEDIANS):
        column = _column(rows, name)
        measures[name] = None if column is None else _summary(name, column, rows)._asdict()
    tars = {name.removeprefix(TAR): _column(rows, name) for name in rows[0] if name.startswith(TAR)}
    rates = {far: _summary("tar", column, rows)._asdict() for far, column in tars.items() if column is not None}
    return measures | {"tar": rates or None}


def _summary(name: str, column: Tensor, rows: Sequence[Row]) -> Interval:
    if name in MEANS:
        return interval(column[:, None])
    return median(column) if name in MEDIANS else rate(column, int(str(rows[0]["views"])))


def _single(values: Mapping[str, Tensor]) -> dict[str, object]:
    """Measures of a single picture with intervals over its views, but for the worst view."""
    measures = {name: interval(values[name]) for name in MEANS if name in values}
    measures |= {"cosine_p10": quantile(values["cosine"][0], LOW), "median_rank": median(values["rank"][0])}
    if "goal_rank" in values:
        measures["goal_rank"] = median(values["goal_rank"][0])
    return {name: value._asdict() for name, value in measures.items()}


def comparisons(rows: Sequence[Row], arm: str = "eot") -> list[dict[str, object]]:
    """An arm against each other one, on each bank: the mean difference of `cosine` and of `success` over pictures
    with its interval, the p value (see `compared`), and `p_holm`, corrected for all comparisons of the list."""
    table: list[dict[str, object]] = []
    p_values: list[float] = []
    for bank, arms in _grouped(rows).items():
        for other in arms:
            for measure in MEASURES if other != arm and arm in arms else ():
                first, second = (_column(arms[name], measure) for name in (arm, other))
                assert first is not None and second is not None
                result = compared(measure, first, second, int(str(arms[arm][0]["views"])))
                key = {"measure": measure, "arm": arm, "other": other, "bank": bank}
                table.append(key | result._asdict() | {"difference": result.difference._asdict()})
                p_values.append(result.p)
    return [row | {"p_holm": p} for row, p in zip(table, holm(p_values), strict=True)]


def _grouped(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by bank and arm, in order of first appearance."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(str(row["bank"]), {}).setdefault(str(row["arm"]), []).append(row)
    return groups


def _column(rows: Sequence[Row], name: str) -> Tensor | None:
    """A column in float64, from numbers or text; None if it has empty cells."""
    values = [row[name] for row in rows]
    if any(value in (None, "") for value in values):
        return None
    return torch.tensor([float(str(value)) for value in values], dtype=torch.float64)
