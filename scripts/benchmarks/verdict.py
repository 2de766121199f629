"""End to end: the seconds to attack and judge pictures, by us, by a loop with kornia and by two libraries."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .case import PIPELINE, cosines_to_anchors
from .contest import OURS, Setting
from .peers import kornia_views
from .strength_case import BALLS, StrengthTask, strength_bank, strength_pictures, task
from .strength_encoders import network
from .strength_peers import CONTESTANTS
from .table import MISSING, BenchmarkTable, Row

#: Gradients of each picture, in runs of their own.
GRADIENTS = (16, 32, 64, 128)
#: Name -> whose attack, and the setting: what is good for the peers in most cells of `strength`.
SETTINGS = {
    OURS: (OURS, Setting(0, 1)),
    "loop with kornia": ("MI-FGSM", Setting(1.6, 1, 1.0, "cosine")),
    "torchattacks": ("torchattacks", Setting(0.2, 2)),
    "ART": ("ART", Setting(0.8, 1, 1.0)),
}


class KorniaViews:
    """The same views by kornia, as one has them without this project."""

    dims, __call__ = PIPELINE.dims, staticmethod(kornia_views)


def run(arch: Sequence[str] = ("pocket", "lite0"), pictures: int = 8, held_out: int = 64) -> list[BenchmarkTable]:
    """Seconds, attack and judging, to a mean cosine in unseen views that all tools reach."""
    return [compare_verdicts(name, pictures, held_out) for name in arch]


def compare_verdicts(arch: str, pictures: int, held_out: int) -> BenchmarkTable:
    """The seconds of each tool to the highest of the cosines that they end with."""
    images = strength_pictures(pictures, "table", arch)
    question = task(network(arch, Path()), images, BALLS["linf8"](images.shape[-1]), PIPELINE, 1, 0)
    points: dict[str, list[tuple[float, float]]] = {}
    for name, (attack, _) in SETTINGS.items():
        if CONTESTANTS[attack].installed:
            points[name] = [judged_attack(name, replace(question, evals=n), held_out) for n in GRADIENTS]
    goal = max(values[-1][1] for values in points.values())
    rows: dict[str, Row] = dict.fromkeys(SETTINGS, MISSING)
    for name, values in points.items():
        rows[name] = (next(seconds for seconds, cosine in values if cosine <= goal), *values[-1])
    title = f"Seconds to the cosine {goal:.3f}: {arch}, {pictures} pictures, 8/255, judged in {held_out} views"
    columns = {"seconds": ".1f", f"s, {GRADIENTS[-1]}": ".1f", "cosine": ".3f"}
    return BenchmarkTable(title, columns, rows, (f"of {', '.join(map(str, GRADIENTS))} gradients a picture",))


def judged_attack(name: str, question: StrengthTask, held_out: int) -> tuple[float, float]:
    """The seconds of attack and judging with the tool's views, and the cosine, always in the same ones."""
    attack, setting = SETTINGS[name]
    views: Any = KorniaViews()
    own_task = question if name == OURS else replace(question, views=views)
    bank = strength_bank(PIPELINE, held_out, "table")
    began = time.perf_counter()
    attacked_images = CONTESTANTS[attack].prepare(own_task, setting)()
    if name == OURS:
        cosines = question.score(attacked_images, bank)
        return time.perf_counter() - began, float(cosines.mean())
    with torch.no_grad():
        for image, anchor in zip(attacked_images, question.anchor, strict=True):
            cosines_to_anchors(question.counter(views(image[None], bank.u)), anchor[None])
    return time.perf_counter() - began, float(question.score(attacked_images, bank).mean())
