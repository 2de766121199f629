"""Judging in a lower precision (`engine.judging`): its effect on the run's first pictures, and the decision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.own import is_half
from attacks.encoders.engine.tf32 import has_tf32
from attacks.evaluation.judge import joined
from attacks.evaluation.score_rounding import EXACT, PRECISIONS, Both, ScoreRounding, Twice, score_rounding
from attacks.evaluation.scores import Scores
from attacks.evaluation.significance import Measure
from attacks.experiment.batch import SAME, BatchResult, Bench, Unit, arms_of, scored
from attacks.experiment.cost import Spent
from attacks.experiment.parts import Parts
from attacks.schema.validate import Run

#: The pictures that are judged in both precisions, at most: one batch of `config=evaluate`.
PICTURES = 16


def check_judging(run: Run, parts: Parts) -> None:
    """Raise ValueError for an `engine.judging` that does not exist, or that this run cannot have."""
    judging, half = run.engine.judging, is_half(parts.encoder)
    if judging == EXACT:
        return
    rules = {
        f"be one of {', '.join(PRECISIONS)}": judging not in PRECISIONS,
        f"not be tf32 on {parts.device}, which has none": judging == "tf32" and not has_tf32(parts.device),
        "be float32 with `evaluate.most`: scores that are not settled yet would end the run": (
            run.evaluate.most is not None
        ),
        "be float32 for an encoder that can only be asked": black_box(parts.encoder) is not None,
        f"be float32 for an encoder in {half}, which is its own precision and stays": half is not None,
    }
    for rule, broken in rules.items():
        if broken:
            raise ValueError(f"`engine.judging` must {rule}; got {judging!r}")
    try:
        prepare(parts.encoder, Decision(precision=judging))
    except ValueError as error:  # no layer that it could be for
        raise ValueError(str(error).replace("engine.precision", "engine.judging")) from None


def settled(bench: Bench, results: Sequence[BatchResult]) -> tuple[list[BatchResult], Twice | None, Spent]:
    """The results as they count, once all are there: in a lower precision only if its effect on the first pictures is
    small enough, else all judged again in float32. With the other scores of those pictures, and what it cost."""
    if bench.lower is None:
        return list(results), None, Spent()
    meter, arms, exact = bench.meter(), arms_of(bench.run, bench.parts), replace(bench, lower=None)
    rows = [row for result in results for row in result.rows][:PICTURES]

    def once(name: str, make: Callable[[], Any]) -> tuple[Any, Spent]:
        made: tuple[Any, Spent] = bench.checkpoint.once(name, lambda: (make(), meter.read()))
        meter.read()
        return made

    def first() -> dict[str, Scores]:
        bank, numbers = bench.banks[SAME], torch.tensor(rows)
        return {
            arm: bench.judge(bench.exhibits.shown(arm, rows), numbers, bank, f"judging {arm} again") for arm in arms
        }

    scores, spent = once("judging", first)
    lower = {arm: joined([result.scores[SAME][arm] for result in results]).taken(range(len(rows))) for arm in arms}
    if rounding(bench, rows, lower, Twice(EXACT, scores)).used != EXACT:
        return list(results), Twice(EXACT, scores), spent
    again = []
    for result in results:
        unit = Unit(result.rows[0], result.rows[-1] + 1, 0)
        (own, worst), cost = once(f"judging {unit.name}", partial(scored, exact, arms, unit))
        again.append(replace(result, scores=own, worst=worst))
        spent = spent + cost
    return again, Twice(bench.run.engine.judging, lower), spent


def rounding(bench: Bench, rows: Sequence[int], scores: Mapping[str, Scores], twice: Twice) -> ScoreRounding:
    """The effect of `engine.judging` on the pictures with numbers `rows` of a bench, from their scores in the
    precision of the tables and in the other one."""
    both = Both(twice.scores, scores) if twice.precision == EXACT else Both(scores, twice.scores)
    run, clusters = bench.run, [bench.parts.queries.clusters[row] for row in rows]
    measure: Measure = "cosine" if run.evaluate.primary == "cosine" else "success"
    return score_rounding(bench.judge, torch.tensor(rows), clusters, both, measure, run.engine.judging)
