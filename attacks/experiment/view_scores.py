"""The scores of every view, in `scores.safetensors`: the rows of per_image.csv follow from them exactly, and a single
view can be judged again."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from attacks.evaluation.scores import Scores
from attacks.experiment.batch import SAME
from attacks.runtime.files import write_bytes

NAME = "scores.safetensors"


class ViewScores(NamedTuple):
    """By bank and arm the `scores` of N pictures from V views and the attacker's `success` (N,V); by arm the cosine
    `worst` (N,) in the refined worst view, and the `steps` (N,) that the files come from, of optimised arms."""

    scores: dict[str, dict[str, Scores]]
    success: dict[str, dict[str, Tensor]]
    worst: dict[str, Tensor]
    steps: dict[str, Tensor]


def write_scores(out: Path, run: ViewScores) -> None:
    """Write the scores of a run: BANK/ARM/cosine and the other columns of `Scores`, each (N,V) in the order of the
    pictures in metrics.json and of the views of the bank, BANK/ARM/success, ARM/worst and ARM/step."""
    write_bytes(out / NAME, save(dict(_columns(run))))


def _columns(run: ViewScores) -> Iterator[tuple[str, Tensor]]:
    for bank, arms in run.scores.items():
        for arm, scores in arms.items():
            yield from _of(scores, f"{bank}/{arm}")
            yield f"{bank}/{arm}/success", run.success[bank][arm]
    yield from ((f"{arm}/worst", worst.contiguous()) for arm, worst in run.worst.items())
    yield from ((f"{arm}/step", steps.int()) for arm, steps in run.steps.items())


def _of(scores: Scores, place: str) -> Iterator[tuple[str, Tensor]]:
    for name, column in scores._asdict().items():
        if column is not None:
            yield f"{place}/{name}", column.int() if column.dtype == torch.long else column.contiguous()


def read_scores(out: Path) -> ViewScores:
    """Read the scores of a run. Raises ValueError in one line where the file does not hold them."""
    try:
        columns = load_file(out / NAME)
        scores: dict[str, dict[str, Scores]] = {}
        success: dict[str, dict[str, Tensor]] = {}
        for bank, arm, name in (key.split("/") for key in columns if key.count("/") == 2):
            if name == "cosine":
                own = {field: columns.get(f"{bank}/{arm}/{field}") for field in Scores._fields}
                long = {field: x.long() if x is not None and x.dtype == torch.int else x for field, x in own.items()}
                scores.setdefault(bank, {})[arm] = Scores(**long)  # type: ignore[arg-type]
                success.setdefault(bank, {})[arm] = columns[f"{bank}/{arm}/success"]
        worst, steps = (
            {key.split("/")[0]: x for key, x in columns.items() if key.count("/") == 1 and key.endswith(f"/{name}")}
            for name in ("worst", "step")
        )
        shapes = {x.shape for arms in scores[SAME].values() for x in arms if x is not None}
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise ValueError(f"{NAME}: it cannot be read ({' '.join(str(error).split())})") from None
    if len(shapes) != 1:
        raise ValueError(f"{NAME}: its columns must be of one shape; they are {sorted(map(tuple, shapes))}")
    return ViewScores(scores, success, worst, steps)
