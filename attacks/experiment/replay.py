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
from attacks.experiment.directory import PreviousRun, open_run, previous_run, refuse_program
from attacks.experiment.embeddings import embed_gallery
from attacks.experiment.unit import Unit
from attacks.objectives.aim import Knowledge
from attacks.study.assembly import build
from attacks.study.objective import aim_of, wants_gallery, watching_layers
from attacks.study.study import Study
from transforms.draws import stream


def _prepare_encoder(module: nn.Module, previous: PreviousRun) -> Encoder:
    """The encoder as the engine ran it, but in float32."""
    try:
        decision = Decision.from_dict(previous.manifest["engine"]["decision"])
    except (KeyError, TypeError, ValueError):
        decision = Decision()
    return prepare(module, decision.exact)


class ViewAddress(NamedTuple):
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
    displayed: Tensor
    notes: tuple[str, ...] = ()


def of_fault(path: Path) -> Replay:
    """The stored view that stopped a run. Raises FileNotFoundError or ValueError in one line."""
    fault = read_fault(path)
    step = "" if fault.step is None else f", step {fault.step}"
    title = f"{fault.doing}{step}, view {fault.view} of image {fault.picture} of its batch"
    return Replay(title, fault.values, fault.lines, fault.shown)


def of_run(folder: Path, address: ViewAddress, device: str = "auto", program: str | None = None) -> Replay:
    """Recompute a view of the attack of a finished run.

    Args:
        device: the device.
        program: the file or plug-in of an encoder that runs code, as the user gives it.

    Raises:
        FileNotFoundError, ValueError: in one line.
    """
    previous = previous_run(folder)
    run = previous.run
    if run.encoder.name == MODULE:
        raise ValueError("`encoder` was a module in memory, and a directory cannot hold it: replay it from Python")
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a replay writes nothing there
    study = build(run)
    _refuse(study, address)
    if not 0 <= address.picture < len(study.queries):
        raise ValueError(f"`--picture` must be one of 0 to {len(study.queries) - 1}; got {address.picture}")
    failed = {failure["picture"] for failure in open_run(folder)[1]["failed"]}
    delta = _read_delta(folder, study, address.picture, failed).to(study.device)
    u = _points(study, address)
    single = study.only([address.picture])
    images = single.queries.images.to(study.device)
    with watching_layers(study.encoder, study.objective) as module:
        goal = aim_of(single.objective, _knowledge_of(single, images), module, single.transforms, single.seed)
        problem = Problem(
            images, goal.anchor, _prepare_encoder(module, previous), goal.objective, single.perturbation
        )
        with torch.no_grad():
            view = one_view(Query(problem, single.transforms, delta, u, torch.zeros(1)), 0, 0)
        lines, displayed = trace_view(view)
    return Replay(
        f"arm eot, step {address.step}, view {address.view} of {single.queries.names[0]}",
        single.transforms.describe(u)[0],
        lines,
        displayed,
        ("with the perturbation that the run has written (perturbation.safetensors): that of the step is not kept",),
    )


def _refuse(study: Study, address: ViewAddress) -> None:
    attack, views = study.attack, study.views
    if attack.nearest is not None:
        raise ValueError("`attack=suite` is several attacks; only the views of a single one can be made again")
    if attack.adversary is not None:
        raise ValueError("`attack.adversary` has chosen the views by a perturbation that is not kept")
    if views.adaptive is not None and address.step:
        raise ValueError(
            f"`--step` must be 0 with attack.views=auto, and `--view` counts the views of all steps; got "
            f"{address.step}"
        )
    if not 0 <= address.step < views.steps:
        raise ValueError(
            f"`--step` must be one of 0 to {views.steps - 1} (of the first start, if there were several); got "
            f"{address.step}"
        )
    view_count = views.per_step if views.adaptive is None else views.gradients
    if not 0 <= address.view < view_count:
        raise ValueError(f"`--view` must be one of 0 to {view_count - 1}; got {address.view}")


def _points(study: Study, address: ViewAddress) -> Tensor:
    """The coordinates (1,dims) of a view, as `attacks.solvers.loop` draws them."""
    shared, rows, size = study.perturbation.shared, study.queries.attacked, study.unit_size
    if address.picture not in rows:
        raise ValueError(
            f"`--picture` {address.picture} is held out: the attack has made no view of it; name another"
        )
    number = address.picture // size
    unit = Unit(number * size, min((number + 1) * size, len(study.queries)), number)
    eot, forced = EOT(study.transforms, study.draws, views=study.views.per_step), None
    block, view = divmod(address.view, eot.views)  # of a step; or of the run, whose blocks are all equal
    if shared:
        forced = len(rows)
    if study.optimiser.gradient_free:
        block, forced = -address.step, None
    seed = stream(stream(unit.seed(study.seed), "eot"), "attack")
    points = eot.points(seed, address.step + block, study.queries.images.to(study.device), pictures=forced)
    return (points if forced is None else points[rows.index(address.picture)])[view, None]


def _read_delta(folder: Path, study: Study, picture: int, failed: Set[int]) -> Tensor:
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
    rows = [row for row in range(len(study.queries)) if row not in failed]
    if len(deltas) != len(rows):
        raise ValueError(
            f"`{path}` holds {len(deltas)} perturbations, not {len(rows)}: restore the file, or make the run again"
        )
    return deltas[rows.index(picture), None]


def _knowledge_of(study: Study, images: Tensor) -> Knowledge:
    """The data of one picture; the gallery is embedded only if the objective needs it."""
    with torch.no_grad():
        embeddings: Any = study.encoder(images)
    if not wants_gallery(study.objective):
        return Knowledge(
            images, embeddings, embeddings, torch.zeros(1, dtype=torch.long, device=embeddings.device), None
        )
    rows = embed_gallery(study.gallery, study.encoder, study.device, Decision().chunk).rows
    assert isinstance(rows, Tensor)  # see `check_gallery`
    return Knowledge(images, embeddings, rows, study.truth, study.goal, study.gallery.label_numbers)
