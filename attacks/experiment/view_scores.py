"""The scores of every view, in `scores.safetensors`: the rows of per_image.csv follow from them exactly."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from attacks.data.images import save_image
from attacks.evaluation.scores import Scores
from attacks.experiment.arms import csv
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.result import NAME as DELTAS
from attacks.experiment.unit import UnitResult
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import write_bytes, write_json, write_text
from attacks.study.study import Study

NAME = "scores.safetensors"


class ViewScores(NamedTuple):
    """By bank and arm the `scores` of N pictures from V views and the attacker's `success` (N,V); by arm the cosine
    `worst` (N,) in the refined worst view, and the `steps` (N,) that the files come from, of optimised arms."""

    scores: dict[str, dict[str, Scores]]
    success: dict[str, dict[str, Tensor]]
    worst: dict[str, Tensor]
    steps: dict[str, Tensor]


def view_scores(bench: Bench, result: UnitResult) -> ViewScores:
    """The scores of all units joined; `bench`: of their pictures."""
    rows = torch.arange(len(bench.study.queries))
    success = {
        bank: {arm: bench.judge.success(scores, rows) for arm, scores in arms.items()}
        for bank, arms in result.scores.items()
    }
    return ViewScores(result.scores, success, result.worst, result.chosen)


def write_results(bench: Bench, result: UnitResult, scores: ViewScores) -> None:
    """Write `adversarial.png`, `perturbation.safetensors`, `scores.safetensors`, `steps.csv`, and of a patch
    `placement.json`; the pictures are written already."""
    study, out = bench.study, bench.exhibits.out
    exhibits = replace(bench.exhibits, world=ALONE)  # the other processes do not listen
    save_image(out / "adversarial.png", exhibits.mosaic())
    write_bytes(out / DELTAS, save(result.saved))
    if study.patch is not None:
        write_json(out / "placement.json", placement(study, exhibits.names))
    write_text(out / "steps.csv", csv(list(result.trace)))
    write_scores(out, scores)


def placement(study: Study, names: Sequence[str]) -> dict[str, Any]:
    """The content of `placement.json`: where the patch lies in the pictures of `pictures/clean`, the files `names`.
    Printing it and scoring photographs of it need this."""
    patch, corners = study.patch, study.perturbation.corners()
    assert patch is not None
    return {
        "schema": 2,
        "pictures": [name.removesuffix(".png") for name in names],
        "size": list(study.queries.images.shape[2:]),
        "texture": list(study.perturbation.texture_size or ()),
        "width_mm": patch.width_mm,
        "id": patch.id,  # on the card of each arm, with the arm's name
        "card": patch.card,  # whether the attack saw the patch with its card
        "fixed": patch.fixed,  # whether the patch lies in the scene where `quads` are
        "quads": corners * (len(names) if len(corners) == 1 else 1),
        "target": study.threat["patch"]["target"],
        "medium": study.threat["patch"]["printer"]["medium"],
    }


def write_scores(out: Path, run: ViewScores) -> None:
    """Write the scores of a run: BANK/ARM/cosine and the other columns of `Scores`, each (N,V) in the order of the
    pictures in metrics.json and of the views of the bank, BANK/ARM/success, ARM/worst and ARM/step."""
    columns: dict[str, Tensor] = {}
    for bank, arm in ((bank, arm) for bank, arms in run.scores.items() for arm in arms):
        named = run.scores[bank][arm]._asdict() | {"success": run.success[bank][arm]}
        columns |= {f"{bank}/{arm}/{name}": column for name, column in named.items() if column is not None}
    columns |= {f"{arm}/worst": worst for arm, worst in run.worst.items()}
    columns |= {f"{arm}/step": steps for arm, steps in run.steps.items()}
    files = {name: x.int() if x.dtype == torch.long else x.contiguous() for name, x in columns.items()}
    write_bytes(out / NAME, save(files))


def read_scores(out: Path) -> ViewScores:
    """Read the scores of a run. Raises ValueError in one line where the file does not hold them."""
    try:
        columns = load_file(out / NAME)
        scores: dict[str, dict[str, Scores]] = {}
        success: dict[str, dict[str, Tensor]] = {}
        for bank, arm, name in (key.split("/") for key in columns if key.count("/") == 2):
            if name == "cosine":
                table = [columns.get(f"{bank}/{arm}/{field}") for field in Scores._fields]
                long = [x.long() if x is not None and x.dtype == torch.int else x for x in table]
                scores.setdefault(bank, {})[arm] = Scores(*long)  # type: ignore[arg-type]
                success.setdefault(bank, {})[arm] = columns[f"{bank}/{arm}/success"]
        worst, steps = (
            {key.split("/")[0]: x for key, x in columns.items() if key.count("/") == 1 and key.endswith(f"/{name}")}
            for name in ("worst", "step")
        )
        shapes = {x.shape for arms in scores[MAIN].values() for x in arms if x is not None}
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise ValueError(f"{NAME}: it cannot be read ({' '.join(str(error).split())})") from None
    if len(shapes) != 1:
        raise ValueError(f"{NAME}: its columns must be of one shape; they are {sorted(map(tuple, shapes))}")
    return ViewScores(scores, success, worst, steps)
