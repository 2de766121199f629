"""Replay a view of a run from the run's directory.

A view that was not finite is in a file (see `attacks.eot.faults`). Any other view is recomputed, because it is a
function of seed and step. The perturbation of that step is not stored, so the final one is shown.
"""

from collections.abc import Set
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from attacks.encoders.description import MODULE
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.tree import Encoder
from attacks.eot.estimator import EOT
from attacks.eot.faults import read_fault
from attacks.eot.faults.locate import Query, one_view
from attacks.eot.faults.trace import Line, trace_view
from attacks.eot.problem import Problem
from attacks.experiment.directory import Earlier, earlier, opened, refuse_program
from attacks.experiment.embeddings import embedded
from attacks.experiment.unit import Unit
from attacks.objectives.aim import Knowledge
from attacks.study.assembly import build
from attacks.study.objective import aim, wants_gallery, watched
from attacks.study.study import Study
from transforms.draws import stream


def _prepared(module: nn.Module, previous: Earlier) -> Encoder:
    """The encoder as the engine ran it, but in float32."""
    try:
        decision = Decision.from_dict(previous.manifest["engine"]["decision"])
    except (KeyError, TypeError, ValueError):
        decision = Decision()
    return prepare(module, decision.exact)


class Named(NamedTuple):
    """The numbers of a view, from 0: the step, the view within the step, and the picture of the run. Where the attack
    chose the number of views itself there is no step: views are counted through the whole run."""

    step: int
    view: int
    picture: int


class Replay(NamedTuple):
    """A replayed view: its title, physical values, a line for each stage, and the image."""

    title: str
    values: dict[str, float]
    lines: tuple[Line, ...]
    shown: Tensor
    notes: tuple[str, ...] = ()


def of_fault(path: Path) -> Replay:
    """The stored view that stopped a run. Raises FileNotFoundError or ValueError in one line."""
    fault = read_fault(path)
    step = "" if fault.step is None else f", step {fault.step}"
    title = f"{fault.doing}{step}, view {fault.view} of image {fault.picture} of its batch"
    return Replay(title, fault.values, fault.lines, fault.shown)


def of_run(folder: Path, named: Named, where: str = "auto", program: str | None = None) -> Replay:
    """Recompute a view of the attack of a finished run.

    Args:
        where: the device.
        program: the file or plug-in of an encoder that runs code, as the user gives it.

    Raises:
        FileNotFoundError, ValueError: in one line.
    """
    previous = earlier(folder)
    run = previous.run
    if run.encoder.name == MODULE:
        raise ValueError("`encoder` was a module in memory, and a directory cannot hold it: replay it from Python")
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = where
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a replay writes nothing there
    study = build(run)
    _refuse(study, named)
    if not 0 <= named.picture < len(study.queries):
        raise ValueError(f"`--picture` must be one of 0 to {len(study.queries) - 1}; got {named.picture}")
    failed = {each["picture"] for each in opened(folder)[1]["failed"]}
    delta = _saved(folder, study, named.picture, failed).to(study.device)
    u = _points(study, named)
    own = study.only([named.picture])
    images = own.queries.images.to(study.device)
    with watched(study.encoder, study.objective) as module:
        goal = aim(own.objective, _known(own, images), module, own.transforms, own.seed)
        problem = Problem(images, goal.anchor, _prepared(module, previous), goal.objective, own.perturbation)
        with torch.no_grad():
            view = one_view(Query(problem, own.transforms, delta, u, torch.zeros(1)), 0, 0)
        lines, shown = trace_view(view)
    return Replay(
        f"arm eot, step {named.step}, view {named.view} of {own.queries.names[0]}",
        own.transforms.describe(u)[0],
        lines,
        shown,
        ("with the perturbation that the run has written (perturbation.safetensors): that of the step is not kept",),
    )


def _refuse(study: Study, named: Named) -> None:
    attack, views = study.attack, study.views
    if attack.nearest is not None:
        raise ValueError("`attack=suite` is several attacks; only the views of a single one can be made again")
    if attack.adversary is not None:
        raise ValueError("`attack.adversary` has chosen the views by a perturbation that is not kept")
    if views.adaptive is not None and named.step:
        raise ValueError(
            f"`--step` must be 0 with attack.views=auto, and `--view` counts the views of all steps; got {named.step}"
        )
    if not 0 <= named.step < views.steps:
        raise ValueError(
            f"`--step` must be one of 0 to {views.steps - 1} (of the first start, if there were several); got "
            f"{named.step}"
        )
    most = views.per_step if views.adaptive is None else views.gradients
    if not 0 <= named.view < most:
        raise ValueError(f"`--view` must be one of 0 to {most - 1}; got {named.view}")


def _points(study: Study, named: Named) -> Tensor:
    """The coordinates (1,dims) of a view, as `attacks.solvers.loop` draws them."""
    shared, rows, size = study.perturbation.shared, study.queries.attacked, study.unit_size
    if named.picture not in rows:
        raise ValueError(f"`--picture` {named.picture} is held out: the attack has made no view of it; name another")
    number = named.picture // size
    unit = Unit(number * size, min((number + 1) * size, len(study.queries)), number)
    eot, own = EOT(study.transforms, study.draws, views=study.views.per_step), None
    block, view = divmod(named.view, eot.views)  # of a step; or of the run, whose blocks are all equal
    if shared:
        own = len(rows)
    if study.optimiser.gradient_free:
        block, own = -named.step, None
    seed = stream(stream(unit.seed(study.seed), "eot"), "attack")
    points = eot.points(seed, named.step + block, study.queries.images.to(study.device), pictures=own)
    return (points if own is None else points[rows.index(named.picture)])[view, None]


def _saved(folder: Path, study: Study, picture: int, failed: Set[int]) -> Tensor:
    """The saved perturbation (1,...) of a picture. Pictures that failed have none."""
    if picture in failed:
        raise ValueError(f"picture {picture} failed in this run, so it has no perturbation; name another `--picture`")
    path = folder / "perturbation.safetensors"
    try:
        deltas = load_file(path)["eot"]
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"`{path}` cannot be read ({error}): restore the file, or make the run again") from None
    if study.perturbation.texture_size is not None:  # one for all pictures
        return deltas
    rows = [each for each in range(len(study.queries)) if each not in failed]
    if len(deltas) != len(rows):
        raise ValueError(
            f"`{path}` holds {len(deltas)} perturbations, not {len(rows)}: restore the file, or make the run again"
        )
    return deltas[rows.index(picture), None]


def _known(study: Study, images: Tensor) -> Knowledge:
    """The data of one picture; the gallery is embedded only if the objective needs it."""
    with torch.no_grad():
        own: Any = study.encoder(images)
    if not wants_gallery(study.objective):
        return Knowledge(images, own, own, torch.zeros(1, dtype=torch.long, device=own.device), None)
    rows = embedded(study.gallery, study.encoder, study.device, Decision().chunk).rows
    assert isinstance(rows, Tensor)  # see `check_gallery`
    return Knowledge(images, own, rows, study.truth, study.goal, study.gallery.label_numbers)
