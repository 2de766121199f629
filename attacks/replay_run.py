"""Any view that the attack of a finished run has seen, from the run's directory.

A view is a function of seed and step. The perturbation of that step is in no file, so the view is shown with the one
that the run has written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from attacks.encoders.engine import Decision
from attacks.encoders.tree import take
from attacks.eot.estimator import EOT
from attacks.eot.faults.certain import Looks, one_view
from attacks.experiment.batch import Unit, part_of
from attacks.experiment.build.objective import Known, aim, wants_gallery, watched
from attacks.experiment.build.parts import Parts, build
from attacks.experiment.embeddings import embedded
from attacks.experiment.replay import Again, as_run, rebuildable
from attacks.schema import groups as choices
from attacks.schema.validate import Run
from attacks.solvers.search import gradient_free
from transforms import scene_of, stream


class Named(NamedTuple):
    """A view of a run by numbers that count from 0: the step, the view in it, and the picture among the run's."""

    step: int
    view: int
    picture: int


@contextmanager
def of_run(folder: Path, named: Named, where: str = "auto", program: str | None = None) -> Iterator[Again]:
    """A view that the attack of a finished run has seen. Arguments and errors as `of_fault`."""
    before = rebuildable(folder, program)
    run = before.run
    _refuse(run, named)
    run.engine.device = where
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a folder to write to
    parts = build(run)
    if not 0 <= named.picture < len(parts.queries):
        raise ValueError(f"`--picture` must be one of 0 to {len(parts.queries) - 1}; got {named.picture}")
    delta = _saved(folder, parts, named.picture).to(parts.device)
    u = _points(folder, run, parts, named)
    mine = part_of(parts, [named.picture])
    images = mine.queries.images.to(parts.device)
    with watched(parts.encoder, run.objective) as module:
        encoder = as_run(module, before)
        goal = aim(run.objective, _known(run, mine, images), module, mine.transforms, run.seed)
        paired = getattr(goal.objective, "paired", False)
        looks = Looks(
            doing="attack",
            transforms=mine.transforms,
            u=u,
            encoder=encoder,
            objective=goal.objective,
            scene=lambda part, _: mine.perturbation.scene(images, part),
            anchor=lambda which: take(goal.anchor, which),
            images=images,
            rows=torch.zeros(1, dtype=torch.long),
            delta=delta,
            twin=(lambda _: scene_of(images)) if paired else None,
        )
        with torch.no_grad():
            view = one_view(looks, 0, 0)
        yield Again(
            view=view,
            title=f"arm eot, step {named.step}, view {named.view} of {mine.queries.names[0]}",
            values=mine.transforms.describe(u)[0],
            notes=(
                "with the perturbation that the run has written (perturbation.safetensors): that of the step itself "
                "is not kept",
            ),
        )


def _refuse(run: Run, named: Named) -> None:
    attack = run.attack
    if isinstance(attack, choices.Suite):
        raise ValueError("`attack=suite` is several attacks; only the views of a single one can be made again")
    if attack.adversary is not None:
        raise ValueError("`attack.adversary` has chosen the views by a perturbation that is not kept")
    if not 0 <= named.step < attack.steps:
        raise ValueError(
            f"`--step` must be one of 0 to {attack.steps - 1} (of the first start, if there were several); got "
            f"{named.step}"
        )


def _points(folder: Path, run: Run, parts: Parts, named: Named) -> Tensor:
    """The coordinates (1,dims) of a view, as `attacks.solvers.loop` draws them."""
    batch, shared = run.evaluate.batch, parts.perturbation.shared
    size = len(parts.queries) if batch is None or shared else min(batch, len(parts.queries))
    number = named.picture // size
    unit = Unit(number * size, min((number + 1) * size, len(parts.queries)), number)
    eot, own = EOT(parts.transforms, parts.draws, n=run.attack.views), None
    drawn_before, times = _blocks(folder, run, named.step, number)
    if not 0 <= named.view < times * eot.n:
        raise ValueError(f"`--view` must be one of 0 to {times * eot.n - 1} in step {named.step}; got {named.view}")
    if shared:
        own = unit.stop - unit.start
    if gradient_free(parts.optimiser):
        drawn_before, own = 0, None
    seed = stream(stream(unit.seed(run.seed), "eot"), "attack")
    points = eot.points(seed, drawn_before, parts.queries.images.to(parts.device), times=times, pictures=own)
    return (points if own is None else points[named.picture - unit.start])[named.view, None]


def _blocks(folder: Path, run: Run, step: int, number: int) -> tuple[int, int]:
    """How many blocks of views were drawn before a step, and how many in it."""
    if getattr(run.attack, "cosine", None) is None:
        return step, 1
    lines = [line.split(",") for line in (folder / "steps.csv").read_text(encoding="utf-8").splitlines()]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    views = [int(row["views"]) for row in rows if row["arm"] == "eot" and int(row["batch"]) == number]
    if step >= len(views):
        raise ValueError(f"`--step` must be one of 0 to {len(views) - 1}: the budget was spent then; got {step}")
    return sum(views[:step]) // run.attack.views, views[step] // run.attack.views


def _saved(folder: Path, parts: Parts, picture: int) -> Tensor:
    """The perturbation (1,...) of a picture, as the run has written it."""
    path = folder / "perturbation.safetensors"
    try:
        found = load_file(path)["eot"]
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"`{path}` cannot be read ({error}): is the run finished?") from None
    if len(found) == 1:
        return found
    if len(found) != len(parts.queries):
        raise ValueError(
            f"`{path}` holds {len(found)} perturbations for {len(parts.queries)} pictures: some have failed"
        )
    return found[picture, None]


def _known(run: Run, mine: Parts, images: Tensor) -> Known:
    """What is known of one picture; the gallery is embedded where the objective asks for it."""
    with torch.no_grad():
        own: Any = mine.encoder(images)
    if not wants_gallery(run.objective):
        return Known(images, own, own, torch.zeros(1, dtype=torch.long, device=own.device), None)
    rows = embedded(mine.gallery, mine.encoder, mine.device, Decision().chunk).rows
    return Known(images, own, rows, mine.truth, mine.goal, mine.gallery.identity)
