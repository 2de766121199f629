"""Which transform matters: attack without one stage of the views, test with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.evaluation.judge import CellScores, Scoring, judged
from attacks.runtime.stored import stored
from transforms import Compose, Shown, base_of
from transforms.compose import Laying, Stage

#: The names of the attack without any stage left out, and of the test with all stages.
NOTHING, ALL = "nothing", "all"


@stored("ablation")
@dataclass(frozen=True)
class LeftOut:
    """Scores of N pictures: the stage left out (or "nothing") -> test ("all", or one stage alone) -> scores."""

    scores: dict[str, dict[str, CellScores]]
    names: tuple[str, ...]
    steps: int

    @property
    def stages(self) -> list[str]:
        return [label for label in self.scores if label != NOTHING]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        rows = [
            {"without": without, "cells": [{"test": test} | cell.to_dict() for test, cell in tests.items()]}
            for without, tests in self.scores.items()
        ]
        return {
            "pictures": len(self.names),
            "steps": self.steps,
            "stages": self.stages,
            "tests": [ALL, *self.stages],
            "rows": rows,
        }

    def rows(self) -> list[dict[str, object]]:
        """From these every cell of the table can be computed: a row for each attack, test, picture and view."""
        return [
            row
            for without, tests in self.scores.items()
            for test, cell in tests.items()
            for row in cell.rows(self.names, without=without, test=test)
        ]


def left_out(
    attack: Callable[[Compose], Shown],
    transforms: Compose,
    rows: Tensor,
    judge: Scoring,
    *,
    names: Sequence[str],
    views: int,
    steps: int,
    seed: int,
) -> LeftOut:
    """Attack with all stages and without each in turn; test each result on all, and on each stage alone.

    In the test of one stage the others are absent: held at its middle, a stage would still turn, shrink or darken
    every view, and the test would measure both. Its coordinates are the same as in the test of all. A stage without
    coordinates stays everywhere (a service's fixed size is no view), and so does one that lays a patch: at its
    middle, where a test does not vary it.

    Args:
        attack: from a pipeline to what is shown of the N pictures after an attack on its views, as read back from
            their 8-bit files. Without its only stage a pipeline is the picture itself.
        rows: (N,) the pictures' numbers among the queries, for `judge`; `names` of them.
        views: of each test; `steps` of each attack, for the report.

    Raises:
        ValueError: in one line: no stage of the pipeline can be left out.
    """
    stages = varying(transforms)
    whole = bank(transforms, views, seed=seed, purpose="left out")
    tests = {ALL: whole} | {label: alone(whole, at) for label, at in stages.items()}
    trained = {NOTHING: transforms} | {label: without(transforms, at) for label, at in stages.items()}
    scores = {}
    for label, pipeline in trained.items():
        shown = attack(pipeline)
        where = base_of(shown).device
        banks = {test: each._replace(u=each.u.to(where)) for test, each in tests.items()}
        scores[label] = {test: judged(judge, shown, rows, each)[0] for test, each in banks.items()}
    return LeftOut(scores, tuple(names), steps)


def varying(transforms: Compose) -> dict[str, int]:
    """The indices of the stages that can be left out, by label. Raises ValueError where there is none."""
    stages = {label: at for at, label in enumerate(transforms.labels) if _can_go(transforms.stages[at])}
    if not stages:
        raise ValueError(
            "`evaluate.left_out` must be 0 where no stage of the views varies, for there is none to leave out; give "
            "`transforms.stages` some"
        )
    return stages


def without(transforms: Compose, at: int) -> Compose:
    """The pipeline without one of its stages."""
    return replace(transforms, stages=[stage for i, stage in enumerate(transforms.stages) if i != at])


def alone(whole: Bank, at: int) -> Bank:
    """The views in which only one of the stages varies."""
    stages = whole.transforms.stages
    indices = [i for i, stage in enumerate(stages) if i == at or not _can_go(stage)]
    starts = [*accumulate((stage.dims for stage in stages), initial=0)]
    u = whole.u.clone()
    for i in indices:
        if i != at:
            u[:, starts[i] : starts[i + 1]] = 0.5
    columns = [column for i in indices for column in range(starts[i], starts[i + 1])]
    return Bank(replace(whole.transforms, stages=[stages[i] for i in indices]), u[:, columns])


def _can_go(stage: Stage) -> bool:
    return stage.dims > 0 and not isinstance(stage, Laying)
