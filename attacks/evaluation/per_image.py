"""The rows of per_image.csv, one for each bank of views, arm and picture; the tables and comparisons of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from attacks.data.split import FIT, JUDGE
from attacks.evaluation.clusters import R, Row, by_arm, by_cluster, column_of, grouped, medians, totals
from attacks.evaluation.scores import Scores
from attacks.inference.bounded import Interval, interval, median, quantile, rate
from attacks.inference.pairs import MEASURES, Measure, fewest_clusters, sign_flips

#: Measures summarised by their mean over pictures; shares of a picture's views; ranks and distances, by the median.
MEANS = ("cosine", "worst_cosine", "shift", "cosine_p10", "mrr", "goal_cosine")
DETECTION = ("fooled_accepted", "flagged")
SHARES = ("recall_at_1", "recall_at_5", "recall_at_10", "success", "success_survived", "knn", "no_answer", *DETECTION)
MEDIANS = ("median_rank", "goal_rank", "distance", "score")
#: The measures in the order of the file.
COLUMNS = ["cosine", "shift", "cosine_p10", "worst_cosine", "recall_at_1", "recall_at_5", "recall_at_10", "mrr"]
COLUMNS += ["median_rank", "success", "survived", "success_survived", "knn", "goal_rank", "goal_cosine"]
COLUMNS += ["distance", "score", "no_answer", *DETECTION]
#: Those that ask for another picture of the same identity: in a run with identities they leave out pictures without.
RETRIEVAL_MEASURES = ("recall_at_1", "recall_at_5", "recall_at_10", "mrr", "median_rank", "knn")
#: Prefix of the columns with true accept rates; the false accept rate follows.
TAR = "tar_"
#: The quantile `cosine_p10`.
LOW = 0.1


def per_image_rows(
    scores: Mapping[str, Mapping[str, Scores]],
    success: Mapping[str, Mapping[str, Tensor]],
    worst: Mapping[str, Mapping[str, Tensor]],
    *,
    pictures: Mapping[str, Sequence[Any]],
    steps: Mapping[str, Tensor],
    thresholds: Mapping[float, float],
    alone: Tensor | None = None,
) -> list[dict[str, object]]:
    """One row for each bank, arm and picture, with the `step` of the attack that its file comes from (None: no
    attack), and means over its views, whose number is in `views`.

    docs/measures.md says what each measure is. `survived` is the number of views that the clean picture survives: the
    attacker has no success on it there. A measure that the run does not have is None.

    `scores`, `success` (N,V) and the cosine in the `worst` view (N,) are by bank and arm, of which one is `clean`;
    `steps` (N,) by optimised arm; `thresholds` by false accept rate. Columns of `pictures` name these: `picture`,
    `cluster`, `identity`, perhaps `split`, `weight`; those `alone` (N,) have no `RETRIEVAL_MEASURES`.
    """
    rows = []
    all_scores = [x for arms in scores.values() for x in arms.values()]
    silent = any(x.no_answer is not None and bool(x.no_answer.any()) for x in all_scores)
    for bank, arms in scores.items():
        for arm, arm_scores in arms.items():
            values = _values(arm_scores, arms["clean"], success[bank][arm])
            clean_hits, blank = success[bank]["clean"], arms["clean"].no_answer
            hits = clean_hits if blank is None else clean_hits | blank
            columns = _columns(values, worst[bank][arm]) | _surviving(hits, success[bank][arm])
            columns |= {} if silent else {"no_answer": None}
            columns |= {
                f"{TAR}{far:g}": (arm_scores.cosine.double() >= limit).double().mean(1).tolist()
                for far, limit in thresholds.items()
            }
            for i in range(len(arm_scores.cosine)):
                row: dict[str, object] = {"bank": bank, "arm": arm}
                row |= {key: names[i] for key, names in pictures.items()}
                row |= {"views": arm_scores.cosine.shape[1], "step": int(steps[arm][i]) if arm in steps else None}
                row |= {name: column and column[i] for name, column in columns.items()}
                rows.append(row | (dict.fromkeys(RETRIEVAL_MEASURES) if alone is not None and alone[i] else {}))
    return rows


def _values(scores: Scores, clean: Scores, success: Tensor) -> dict[str, Tensor]:
    """The measures of each view of each picture, (N,V) in float64."""
    assert scores.rank is not None  # the judge has the ground truth
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
        "distance": scores.distance,
        "score": scores.score,
        "no_answer": scores.no_answer,
        "fooled_accepted": None if scores.detector is None else success & (scores.detector >= 0),
        "flagged": None if scores.detector is None else scores.detector < 0,
    }
    return {name: value.double() for name, value in columns.items() if value is not None}


def _surviving(clean: Tensor, success: Tensor) -> dict[str, list[Any]]:
    """The columns `survived` and `success_survived`, from the successes (N,V) on the clean pictures and of an arm."""
    survivors, hits = (~clean).sum(1).tolist(), (success & ~clean).sum(1).tolist()
    shares = [hit / views if views else None for hit, views in zip(hits, survivors, strict=True)]
    return {"survived": survivors, "success_survived": shares}


def _columns(values: Mapping[str, Tensor], worst: Tensor) -> dict[str, list[float] | None]:
    """The columns of the file: one number for each picture."""
    columns = {name: value.mean(1) for name, value in values.items()}
    columns |= {"cosine_p10": values["cosine"].quantile(LOW, 1), "worst_cosine": worst.double()}
    for name in MEDIANS:
        if (key := name.removeprefix("median_")) in values:
            columns[name] = values[key].median(1).values
    return {name: columns[name].tolist() if name in columns else None for name in COLUMNS}


def arms_table(
    rows: Sequence[Row], *, views: Mapping[str, tuple[Mapping[str, Scores], Mapping[str, Tensor]]] | None = None
) -> dict[str, dict[str, dict[str, object]]]:
    """By bank, arm and measure the mean over clusters of their pictures' means, weighted by a column `weight`, or the
    median of their medians, which is not, with its 95 % interval (see `attacks.inference`); `tar` by false accept
    rate. None where the rows have none.

    `rows` are those of `per_image_rows`, or read back from their file. `views` are given for a run of a single
    picture, whose intervals are over its views: by bank the scores and successes by arm.
    """
    table: dict[str, dict[str, dict[str, object]]] = {}
    for bank, arms in rows_by_arm(rows).items():
        table[bank] = {arm: _measures(arm_rows) for arm, arm_rows in arms.items()}
        if views is not None:
            scores, success = views[bank]
            for arm, arm_scores in scores.items():
                single, cell = _single(_values(arm_scores, scores["clean"], success[arm])), table[bank][arm]
                cell |= {name: value for name, value in single.items() if cell[name] is not None}
    return table


def _measures(rows: Sequence[Row]) -> dict[str, object]:
    measures: dict[str, object] = {name: measure_summary(name, rows) for name in (*MEANS, *SHARES, *MEDIANS)}
    tars = [name for name in rows[0] if name.startswith(TAR)]
    rates = {name.removeprefix(TAR): value for name in tars if (value := measure_summary(name, rows)) is not None}
    return measures | {"tar": rates or None}


def measure_summary(name: str, rows: Sequence[Row]) -> dict[str, object] | None:
    """A measure of some rows as plain values; None where they have none."""
    views, rows = "survived" if name == "success_survived" else "views", with_a_value(name, rows)
    column = number_column(rows, name)
    if column is None:
        return None
    clusters = cluster_column(rows)
    units = (medians if name in MEDIANS else by_cluster)(column, clusters)
    if name in SHARES or name.startswith(TAR):
        value = rate(units, totals(column_of(rows, views), clusters), cluster_weights(rows))
    else:
        value = median(units) if name in MEDIANS else interval(units, *span(name), weights=cluster_weights(rows))
    return mean_figures(value, units, has_fit_rows(rows))


def cluster_weights(rows: Sequence[Row]) -> Tensor | None:
    """The weight of each cluster (C,), in the order of `by_cluster`; None where all count alike."""
    column = number_column(rows, "weight") if rows and "weight" in rows[0] else None
    return None if column is None else by_cluster(column, cluster_column(rows))


def span(measure: str) -> tuple[float, float]:
    """The least and greatest value of a measure that has a mean."""
    return (-2.0, 2.0) if measure == "shift" else (-1.0, 1.0) if "cosine" in measure else (0.0, 1.0)


def judged_rows(rows: Sequence[R]) -> list[R]:
    """The rows that the tables of a run are about: those of held-out pictures, or all where none is held out."""
    held_out = [row for row in rows if row.get("split") == JUDGE]
    return held_out or list(rows)


def has_fit_rows(rows: Sequence[Row]) -> bool:
    """Whether a shared perturbation was made from these pictures: they have no interval or test."""
    return any(row.get("split") == FIT for row in rows)


def range_interval(mean: float, units: Tensor) -> Interval:
    """A mean with the range of the clusters' values (C,)."""
    return Interval(mean, float(units.min()), float(units.max()), "range")


def mean_figures(value: Interval, units: Tensor, fit: bool) -> dict[str, Any]:
    """The mean of clusters (C,) as plain values; the range of several that a shared perturbation was made from."""
    return (range_interval(value.mean, units) if fit and len(units) > 1 else value)._asdict()


def with_a_value(name: str, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of pictures that can have a measure. Without a view that the clean picture survives there is no
    `success_survived`, and without another picture of the identity there are no `RETRIEVAL_MEASURES`."""
    optional = name in ("success_survived", *RETRIEVAL_MEASURES)
    return [row for row in rows if row.get(name) not in (None, "")] if optional else rows


def _single(values: Mapping[str, Tensor]) -> dict[str, object]:
    """Measures of a single picture with intervals over its views, but for the worst view."""
    measures = {name: interval(values[name], *span(name)) for name in MEANS if name in values}
    values = {**values, "median_rank": values["rank"]}
    measures |= {"cosine_p10": quantile(values["cosine"][0], LOW)}
    measures |= {name: median(values[name][0]) for name in MEDIANS if name in values}
    return {name: value._asdict() for name, value in measures.items()}


def cluster_column(rows: Sequence[Row]) -> list[str]:
    """The cluster of each row's picture."""
    return [str(row["cluster"]) for row in rows]


def rows_by_arm(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Rows by bank and arm, in order of first appearance."""
    return {bank: by_arm(group) for (bank,), group in grouped(rows, "bank").items()}


def number_column(rows: Sequence[Row], name: str) -> Tensor | None:
    """A column in float64, from numbers or text; None if it has empty cells."""
    return column_of(rows, name) if rows and all(row[name] not in (None, "") for row in rows) else None


#: The arm whose effect is tested, and those without views that it is compared with in the primary comparison, where
#: the run has them.
ARM, BASELINES = "eot", ("noise", "no_eot")
#: The bank of views of the primary comparison: of the attack's own distribution.
BANK = "same"


def clips_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By `clip` the successes on its frames in order, on the untouched and on the attacked ones."""
    clips = grouped([row for row in rows if row["bank"] == BANK], "clip")
    return [
        {"clip": clip, **{arm: column_of(by_arm(frames)[arm], "success").tolist() for arm in ("clean", ARM)}}
        for (clip,), frames in clips.items()
    ]


def declaration(
    measure: str, arms: Sequence[str], split: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """The primary comparison of a run with some `arms` as it is declared before it, for manifest.json. `split`: of a
    shared perturbation the pictures that it is made from and those held out, which are compared."""
    return ({} if split is None else {"split": split}) | {
        "measure": measure,
        "arm": ARM,
        "baselines": _baselines(arms),
        "bank": BANK,
        "test": "sign flips of clusters, against the baseline with the largest one-sided p",
    }


def primary(rows: Sequence[Row], measure: Measure) -> dict[str, Any]:
    """The primary comparison: EOT against the attacks without views, from rows of per_image.csv.

    The statement is that EOT is better than all of them (an intersection-union test, Berger 1982). It is made about
    the one that EOT beats least surely, with the largest one-sided p value, and needs no correction for the choice. p
    is None where so few clusters cannot give one below 0.05, and `needed` says how many could. Give `judged_rows`."""
    arms, fit = rows_by_arm(rows)[BANK], has_fit_rows(rows)
    arm_units, better = _units(arms[ARM], measure), 1 if measure == "success" else -1
    baselines = _baselines(arms)
    tests = {name: sign_flips(arm_units, _units(arms[name], measure)) for name in baselines}
    sides = {name: test.positive if better > 0 else test.negative for name, test in tests.items()}
    closest = max(reversed(baselines), key=lambda name: (sides[name], -better * tests[name].difference.mean))
    return {
        "measure": measure,
        "arm": ARM,
        "against": closest,
        "baselines": baselines,
        "bank": BANK,
        "test": "sign flips",
        **comparison_figures(arm_units, _units(arms[closest], measure), fit),
        "clusters": len(arm_units),
    }


def secondary(rows: Sequence[Row], measure: Measure) -> list[dict[str, Any]]:
    """EOT against each other arm on each bank, without the primary comparison, which is in `measure`: the typical
    difference of `cosine` and of `success` with its interval and p value, for all of the list at once.

    Where so few clusters cannot give a p value below 0.05, it is None, and `needed` is the number of clusters that
    could. On pictures that a shared perturbation was made from it is None, too, and `needed` is twice that number:
    half of the clusters would be held out.
    """
    main, fit = primary(rows, measure), has_fit_rows(rows)
    pairs: list[tuple[dict[str, Any], Tensor, Tensor]] = []
    for bank, arms in rows_by_arm(rows).items():
        for other in sorted((arm for arm in arms if arm != ARM), key=lambda arm: arm != "one_view"):
            for quantity in MEASURES:
                key = {"measure": quantity, "arm": ARM, "other": other, "bank": bank, "test": "sign flips"}
                if any(main[name] != key[name] for name in ("measure", "bank")) or main["against"] != other:
                    pairs.append((key, _units(arms[ARM], quantity), _units(arms[other], quantity)))
    return [key | comparison_figures(first, second, fit, len(pairs)) for key, first, second in pairs]


def comparison_figures(first: Tensor, second: Tensor, fit: bool, tests: int = 1) -> dict[str, Any]:
    """One of so many comparisons of clusters' values (C,) as plain values; with the range for `fit` pictures."""
    value, p, needed, *_ = sign_flips(first, second, tests)
    if fit:
        p, needed, value = None, 2 * fewest_clusters(tests), range_interval(value.mean, first - second)
    return {"difference": value._asdict(), "p": p, "needed": needed}


def _baselines(arms: Iterable[str]) -> list[str]:
    return [name for name in BASELINES if name in arms]


def _units(rows: Sequence[Mapping[str, object]], measure: Measure) -> Tensor:
    return by_cluster(column_of(rows, measure), cluster_column(rows))
