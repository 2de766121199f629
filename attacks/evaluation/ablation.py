"""Which stage of the views an attack must know: attack without each stage, test with it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from attacks.eot.bank import Bank, bank
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.judge import Judge, cell_differences, cells_of, score_cells
from transforms import Compose
from transforms.compose import Laying, Stage
from transforms.scene import Shown, base_of

#: The names of the attack without any stage left out, and of the test with all stages.
NO_STAGE, ALL_STAGES = "nothing", "all"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json: in each test the scores, and the difference in success to the full attack."""
    cells = cells_of(rows, "without", "test")
    clusters = next(iter(cells.values())).clusters
    table: dict[str, list[dict[str, Any]]] = {}
    pairs = {key: (cell, cells[NO_STAGE, key[1]]) for key, cell in cells.items() if key[0] != NO_STAGE}
    differences = cell_differences(pairs)
    for (label, test), cell in cells.items():
        difference = differences.get((label, test), {"difference": None})
        table.setdefault(label, []).append({"test": test, **cell.to_dict(), **difference})
    stages = [label for label in table if label != NO_STAGE]
    return {
        "pictures": len(clusters),
        "clusters": len(set(clusters)),
        "stages": stages,
        "tests": [ALL_STAGES, *stages],
        "rows": [{"without": label, "cells": tests} for label, tests in table.items()],
    }


def left_out(
    attack: Callable[[Compose], Shown], transforms: Compose, sample: Sample, judge: Judge, *, views: int, seed: int
) -> list[dict[str, object]]:
    """Attack with all stages and without each in turn; test each result with all stages, and with each alone. Returns
    a row for each attack, test, picture and view.

    In the test of one stage the others are absent rather than at their middle, where a stage may still rotate, shrink
    or darken. The coordinates of the stage are those of the test with all stages. Stages without coordinates are
    never left out. Neither are those that lay a patch, which are at their middle in tests of other stages. `attack`
    attacks the pictures of the sample on the views of a pipeline, and returns them as read back from their 8-bit
    files; each test has so many `views`. Raises ValueError where no stage can be left out."""
    stages = varying(transforms)
    full_bank = bank(transforms, views, seed=seed, purpose="left out")
    tests = {ALL_STAGES: full_bank} | {label: only_stage(full_bank, at) for label, at in stages.items()}
    pipelines = {NO_STAGE: transforms} | {label: without_stage(transforms, at) for label, at in stages.items()}
    rows: list[dict[str, object]] = []
    for label, pipeline in pipelines.items():
        scenes = attack(pipeline)
        for test, views_of_test in tests.items():
            held_out = views_of_test._replace(u=views_of_test.u.to(base_of(scenes).device))
            rows += score_cells(judge, scenes, sample.rows, held_out).rows(sample, without=label, test=test)
    return rows


def varying(transforms: Compose) -> dict[str, int]:
    """The indices of the stages that can be left out, by label. Raises ValueError where there is none."""
    stages = {label: at for at, label in enumerate(transforms.labels) if _can_go(transforms.stages[at])}
    if not stages:
        raise ValueError(
            "`evaluate.left_out` must be 0 where no stage of the views varies, so that none can be left out; add "
            "some to `transforms.stages`"
        )
    return stages


def without_stage(transforms: Compose, at: int) -> Compose:
    return replace(transforms, stages=[stage for i, stage in enumerate(transforms.stages) if i != at])


def only_stage(full_bank: Bank, at: int) -> Bank:
    """The views in which only one of the stages varies."""
    stages = full_bank.transforms.stages
    indices = [i for i, stage in enumerate(stages) if i == at or not _can_go(stage)]
    starts = [*accumulate((stage.dims for stage in stages), initial=0)]
    u = full_bank.u.clone()
    for i in indices:
        if i != at:
            u[:, starts[i] : starts[i + 1]] = 0.5
    columns = [column for i in indices for column in range(starts[i], starts[i + 1])]
    return Bank(replace(full_bank.transforms, stages=[stages[i] for i in indices]), u[:, columns])


def _can_go(stage: Stage) -> bool:
    return stage.dims > 0 and not isinstance(stage, Laying)
