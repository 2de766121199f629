"""The rows of per_image.csv, one for each bank of views, arm and picture; and the tables computed from them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from attacks.evaluation.intervals import Interval, interval, median, quantile, rate_of_shares
from attacks.evaluation.retrieval_metrics import far_name, mrr, recall_at, tar
from attacks.evaluation.scores import Scores
from attacks.evaluation.significance import MEASURES, compared, holm

#: Measures whose means over pictures are given; shares of a picture's views; and places, of which the median is.
MEANS = ("cosine", "worst_cosine", "shift", "cosine_p10", "mrr", "goal_cosine")
SHARES = ("recall_at_1", "recall_at_5", "recall_at_10", "success", "knn")
MEDIANS = ("median_rank", "goal_rank")
#: Of the columns with a true accept rate; the false accept rate follows.
TAR = "tar_"
#: The share of a picture's views with a lower cosine than its `cosine_p10`.
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
    """One row for each bank, arm and picture, with the means over its views (column `views`): `cosine` to the
    picture's clean embedding; `shift`, that less the clean arm's in the same view; `cosine_p10`, its 10th percentile
    (numpy's, linear between two views); `worst_cosine`; the shares `recall_at_1`, `recall_at_5`, `recall_at_10`,
    `success` (of the attacker), `knn` and `tar_0.01`, ... (accepted as the picture at that false accept rate); `mrr`,
    the mean of 1 / rank; `median_rank`, the lower median; with a target also `goal_cosine`, and `goal_rank`, the
    lower median. None where the run has no such measure.

    Args:
        scores: by bank and arm, of the same pictures, one arm being `clean`.
        success: by bank and arm (N,V) bool.
        worst: by bank and arm the cosine (N,) in the view that resists the attacker most, however it was found.
        pictures: N names.
        identities: N labels of what they show.
        thresholds: of verification, by false accept rate.
    """
    rows = []
    for bank, arms in scores.items():
        for arm, arm_scores in arms.items():
            values = _values(arm_scores, arms["clean"], success[bank][arm])
            columns = _columns(values, worst[bank][arm]) | {
                f"{TAR}{far_name(far)}": tar(arm_scores.cosine, limit).double().mean(1).tolist()
                for far, limit in thresholds.items()
            }
            for i, (picture, identity) in enumerate(zip(pictures, identities, strict=True)):
                row: dict[str, object] = {"bank": bank, "arm": arm, "picture": picture, "identity": identity}
                row |= {"views": arm_scores.cosine.shape[1]}
                rows.append(row | {name: None if column is None else column[i] for name, column in columns.items()})
    return rows


def _values(scores: Scores, clean: Scores, success: Tensor) -> dict[str, Tensor | None]:
    """The measures of each view of each picture, (N,V) in float64."""
    if scores.rank is None:
        raise ValueError("`scores` have no ranks; call `evaluate` with `right`, the ground truth")
    columns = {
        "cosine": scores.cosine,
        "shift": scores.cosine.double() - clean.cosine.double(),
        "rank": scores.rank,
        "mrr": mrr(scores.rank),
        **{f"recall_at_{k}": recall_at(scores.rank, k) for k in (1, 5, 10)},
        "success": success,
        "knn": scores.vote,
        "goal_rank": scores.goal_rank,
        "goal_cosine": scores.goal_cosine,
    }
    return {name: None if value is None else value.double() for name, value in columns.items()}


def _columns(values: Mapping[str, Tensor | None], worst: Tensor) -> dict[str, list[float] | None]:
    """The columns of the file: one number for each picture."""
    means = {name: None if value is None else value.mean(1) for name, value in values.items()}
    cosine, rank, goal = values["cosine"], values["rank"], values["goal_rank"]
    assert cosine is not None and rank is not None
    columns = {
        "cosine": means["cosine"],
        "shift": means["shift"],
        "cosine_p10": cosine.quantile(LOW, 1),
        "worst_cosine": worst.double(),
        **{name: means[name] for name in ("recall_at_1", "recall_at_5", "recall_at_10", "mrr")},
        "median_rank": rank.median(1).values,
        "success": means["success"],
        "knn": means["knn"],
        "goal_rank": None if goal is None else goal.median(1).values,
        "goal_cosine": means["goal_cosine"],
    }
    return {name: None if value is None else value.tolist() for name, value in columns.items()}


def arms_table(
    rows: Sequence[Row], *, views: Mapping[str, tuple[Mapping[str, Scores], Mapping[str, Tensor]]] | None = None
) -> dict[str, dict[str, dict[str, object]]]:
    """By bank, arm and measure the mean over pictures, or median, with its 95 % interval; `tar` by false accept rate.
    None where the rows have none.

    Args:
        rows: of `per_image_rows`, or as read back from their file.
        views: for a run of a single picture, by bank the scores and successes by arm: its intervals are over its
            views, and rows have only their mean. (Those of shares need no more than the rows.)
    """
    table: dict[str, dict[str, dict[str, object]]] = {}
    for bank, arms in _grouped(rows).items():
        table[bank] = {arm: _measures(some) for arm, some in arms.items()}
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
    fars = [name for name in rows[0] if name.startswith(TAR)]
    accepted = {name.removeprefix(TAR): _column(rows, name) for name in fars}
    measures["tar"] = {
        far: _summary("tar", column, rows)._asdict() for far, column in accepted.items() if column is not None
    } or None
    return measures


def _summary(name: str, column: Tensor, rows: Sequence[Row]) -> Interval:
    if name in MEANS:
        return interval(column[:, None])
    return median(column) if name in MEDIANS else rate_of_shares(column, int(str(rows[0]["views"])))


def _single(values: Mapping[str, Tensor | None]) -> dict[str, object]:
    """Measures of a single picture with intervals over its views; the worst view is one, and has none."""
    cosine, rank, goal = values["cosine"], values["rank"], values["goal_rank"]
    assert cosine is not None and rank is not None
    measures = {name: interval(value) for name in MEANS if (value := values.get(name)) is not None}
    measures |= {"cosine_p10": quantile(cosine[0], LOW), "median_rank": median(rank[0])}
    if goal is not None:
        measures["goal_rank"] = median(goal[0])
    return {name: value._asdict() for name, value in measures.items()}


def comparisons(rows: Sequence[Row], arm: str = "eot") -> list[dict[str, object]]:
    """An arm against each other one, on each bank, computed from the rows alone: the mean difference of `cosine` and
    of `success` over pictures, with its interval, and a p value; `p_holm` is that corrected for all comparisons of
    the list. Cosines are tested by flipping signs, successes by McNemar's test of the pictures that the attack wins
    in more than half of their views."""
    table: list[dict[str, object]] = []
    chances: list[float] = []
    for bank, arms in _grouped(rows).items():
        for other in arms:
            for measure in MEASURES if other != arm and arm in arms else ():
                first, second = (_column(arms[name], measure) for name in (arm, other))
                assert first is not None and second is not None
                answer = compared(measure, first, second, int(str(arms[arm][0]["views"])))
                key = {"measure": measure, "arm": arm, "other": other, "bank": bank}
                table.append(key | answer._asdict() | {"difference": answer.difference._asdict()})
                chances.append(answer.p)
    return [row | {"p_holm": p} for row, p in zip(table, holm(chances), strict=True)]


def _grouped(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by bank and arm, in order of first appearance."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(str(row["bank"]), {}).setdefault(str(row["arm"]), []).append(row)
    return groups


def _column(rows: Sequence[Row], name: str) -> Tensor | None:
    """A column in float64, whose numbers may be text; None where it is empty."""
    values = [row[name] for row in rows]
    if any(value in (None, "") for value in values):
        return None
    return torch.tensor([float(str(value)) for value in values], dtype=torch.float64)
