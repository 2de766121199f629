"""The clean views of the first pictures, judged before anything is attacked: do the views fit the encoder?"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from attacks.encoders.black_box.asked import black_box
from attacks.eot.batching import memory_told
from attacks.evaluation.classes import Classes
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.units import FAULTS
from attacks.runtime.values import stored
from attacks.schema.presets import is_choice

#: Pictures that are judged, as many as a unit of an evaluation has, and views of each.
PICTURES, VIEWS = 8, 16
#: The largest share of lost views with which a run begins whose user did not choose the views.
LIMIT = 0.5


class LostViews(ValueError):
    """Most clean views are lost, and nobody chose them."""


@stored("clean_views")
class CleanViews(NamedTuple):
    """Without an attack, the share of views that are lost to the attacker already (`loss`); of so many `views` those
    `right`; the mean `cosine` (None of logits); and the share of `files` with the right class (None: no labels)."""

    loss: float
    views: int
    right: int
    cosine: float | None
    files: float | None

    def __str__(self) -> str:
        text = f"clean views: {100 * self.right / self.views:.0f} % right ({self.right} of {self.views})"
        text += "" if self.cosine is None else f", mean cosine {self.cosine:.2f}"
        return text + ("" if self.files is None else f"; clean files: {100 * self.files:.0f} % right")


def clean_views(bench: Bench) -> CleanViews:
    """How the encoder judges clean views of the first pictures."""
    study, judge, bank = bench.study, bench.judge, bench.banks[MAIN]
    rows = torch.tensor(study.queries.of_one_shape(PICTURES))
    images = study.queries.only(rows.tolist()).images.to(study.device)
    scores = judge(images, rows, bank._replace(u=bank.u[:VIEWS]))
    right = ~replace(judge, goal=None).success(scores, rows)
    loss = float(judge.success(scores, rows).double().mean())
    classes = study.gallery if isinstance(study.gallery, Classes) else None
    cosine = None if classes is not None and classes.logits else float(scores.cosine.mean())
    return CleanViews(loss, right.numel(), int(right.sum()), cosine, None if classes is None else classes.right)


def look_first(bench: Bench, manifest: Mapping[str, Any]) -> CleanViews | None:
    """The clean views of a run that begins. A black box is not asked: each question counts. Raises LostViews."""
    if black_box(bench.study.encoder) is None:
        with suppress(*FAULTS), memory_told():  # the fault of a picture costs only that, when it is attacked
            views: CleanViews = bench.checkpoint.once("clean views", partial(clean_views, bench))
            refuse_loss(views, manifest)
            return views
    return None


def refuse_loss(views: CleanViews, manifest: Mapping[str, Any]) -> None:
    """Raise LostViews where most clean views are lost and nobody chose them: such a run says nothing of an attack.
    Random weights are no fault of the views. `manifest`: of manifest.json."""
    is_random = manifest["encoder"]["weights"] == "random"
    if views.loss <= LIMIT or is_random or is_choice("transforms", manifest["preset"], manifest["overrides"]):
        return
    name = manifest["config"]["transforms"]["name"]
    raise LostViews(
        f"`transforms` must leave most clean views right where it is a default; with {name} "
        f"{100 * views.loss:.0f} % are lost before any attack ({views}): choose gentler views (transforms=web, "
        f"transforms=identity, or smaller ranges), or say transforms={name} to accept them"
    )
