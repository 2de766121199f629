"""The engine of a run: as configured, as an earlier run decided, or as measured on the first step of this run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.engine.decision import SETTINGS, Choice, Decision, Measurement, Trial
from attacks.encoders.engine.tf32 import has_tf32
from attacks.encoders.engine.tuner import choose
from attacks.encoders.tree import Encoder
from attacks.eot.estimator import EOT
from attacks.eot.problem import Problem
from attacks.experiment.batch import part_of
from attacks.experiment.directory import read_json
from attacks.experiment.embeddings import BLOCK, cache_of, embedded
from attacks.objectives.aim import Known
from attacks.runtime.distributed import World
from attacks.schema.validate import Run
from attacks.study.data import hidden
from attacks.study.objective import aim, wants_gallery, watched
from attacks.study.study import Parts
from transforms.draws import stream

#: The approximate number of views of a measurement, on a CPU and on CUDA.
ROWS = (32, 256)
#: The views of a measured step where the attack chooses them: a single one would not show the noise that rounding is
#: compared with.
VIEWS = 4


def decide(run: Run, parts: Parts, world: World) -> Choice:
    """The engine's decision for a run, the same on every process of `world`: the first one measures.

    Raises ValueError or FileNotFoundError for a setting that does not exist.
    """
    requested = {name: getattr(run.engine, name) for name in SETTINGS}
    given = {name: value for name, value in requested.items() if value != "auto"}
    try:
        decision = Decision(**given)
    except ValueError as error:
        raise ValueError(f"`engine.{str(error).removeprefix('`')}") from None
    if run.engine.reuse is not None:
        decision = earlier(run.engine.reuse)
        if run.engine.name == "auto" and not given.items() <= decision.to_dict().items():
            raise ValueError("`engine.reuse` takes over a whole decision; give no other engine setting beside it")
    if decision.precision == "tf32" and not has_tf32(parts.device):
        raise ValueError(
            f"`engine.precision` must not be tf32 on {parts.device}, which has none (NVIDIA GPUs do, from "
            "Ampere on); use engine.precision=auto"
        )
    whole = run.engine.reuse is not None or len(given) == len(requested)
    if not whole and black_box(parts.encoder) is None:  # which has nothing to measure
        choice = _measured(run, parts, requested) if world.first else None
        plain = None if choice is None else [choice.decision.to_dict(), [m.to_dict() for m in choice.measurements]]
        settings, measurements = world.agree(plain)
        return Choice(Decision.from_dict(settings), tuple(Measurement(**m) for m in measurements))
    return Choice(decision, ())


def earlier(path: str) -> Decision:
    """The decision of a run directory, or of its manifest.json."""
    file = Path(path) / "manifest.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"`engine.reuse` must be a run directory or its manifest.json; got {path!r}")
    try:
        return Decision.from_dict(dict(read_json(file)["engine"]["decision"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"`engine.reuse`: {file} holds no engine decision; is it a manifest.json?") from None


def _measured(run: Run, parts: Parts, requested: dict[str, Any]) -> Choice:
    """Measure on the first step of the attack: its first pictures, views, and start."""
    views, rows = parts.views.each * (1 if parts.views.adaptive is None else VIEWS), parts.queries.attacked
    count, never = len(rows), hidden(parts.gallery, parts.queries, parts.truth)
    some = min(count, max(1, ROWS[parts.device.type == "cuda"] // views))
    parts = part_of(parts, rows[:some])
    images = parts.queries.images.to(parts.device)
    delta = parts.perturbation.start(images, torch.Generator().manual_seed(stream(run.seed, "start")))
    eot = EOT(parts.transforms, parts.draws, views=views, risk=parts.risk)
    u = eot.points(stream(run.seed, "attack"), 0, images)
    with torch.no_grad():
        own = gallery = parts.encoder(images)
        if wants_gallery(run.objective):
            cache = cache_of(run, parts.encoder, Decision(), parts.device)
            gallery = embedded(parts.gallery, parts.encoder, parts.device, BLOCK, cache).rows
    known = Known(images, own, gallery, parts.truth, parts.goal, parts.gallery.label_numbers)
    known = known.without(never) if gallery is not own else known

    def trial(encoder: Encoder, chunk: int) -> Trial:
        problem = Problem(images, anchor, encoder, objective, parts.perturbation)
        estimate = replace(eot, chunk=chunk).estimate(problem, delta, u)
        return Trial(estimate.grad, estimate.snr)

    total = 2 * count * parts.views.gradients  # both optimised arms
    with watched(parts.encoder, run.objective) as encoder:
        objective, anchor = aim(run.objective, known, encoder, parts.transforms, run.seed)
        return choose(encoder, trial, requested, rows=some * views, total_views=total, device=parts.device)
