"""The engine of a run: as configured, as an earlier run decided, or as measured on the first step of this run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.engine.decision import SETTINGS, Choice, Decision, Measurement, Trial
from attacks.encoders.engine.precision import has_tf32
from attacks.encoders.engine.tuner import choose
from attacks.encoders.tree import Encoder
from attacks.eot.estimator import EOT
from attacks.eot.problem import Problem
from attacks.experiment.directory import read_json
from attacks.experiment.embeddings import BLOCK, cache_of, embed_gallery
from attacks.objectives.aim import Knowledge
from attacks.runtime.distributed import World
from attacks.schema.groups import EngineConfig
from attacks.study.data import hidden_rows
from attacks.study.objective import aim_of, wants_gallery, watching_layers
from attacks.study.study import Study
from transforms.draws import stream

#: The approximate number of views of a measurement, on a CPU and on CUDA.
ROWS = (32, 256)
#: The views of a measured step where the attack chooses them: a single one would not show the noise that rounding is
#: compared with.
VIEWS = 4


def engine_choice(node: EngineConfig, study: Study, world: World, cache: str | None) -> Choice:
    """The engine's decision for a run, the same on every process of `world`: the first one measures. Raises
    ValueError or FileNotFoundError for a setting that does not exist."""
    requests = {name: getattr(node, name) for name in SETTINGS}
    fixed_values = {name: value for name, value in requests.items() if value != "auto"}
    try:
        decision = Decision(**fixed_values)
    except ValueError as error:
        raise ValueError(f"`engine.{str(error).removeprefix('`')}") from None
    if node.reuse is not None:
        decision = read_decision(node.reuse)
        if node.name == "auto" and not fixed_values.items() <= decision.to_dict().items():
            raise ValueError("`engine.reuse` takes over a whole decision; give no other engine setting beside it")
    if decision.precision == "tf32" and not has_tf32(study.device):
        raise ValueError(
            f"`engine.precision` must not be tf32 on {study.device}, which has none (NVIDIA GPUs do, from "
            "Ampere on); use engine.precision=auto"
        )
    is_decided = node.reuse is not None or len(fixed_values) == len(requests)
    if not is_decided and black_box(study.encoder) is None:  # which has nothing to measure
        choice = _measure(study, requests, cache) if world.first else None
        plain = None if choice is None else [choice.decision.to_dict(), [m.to_dict() for m in choice.measurements]]
        settings, measurements = world.agree(plain)
        return Choice(Decision.from_dict(settings), tuple(Measurement(**m) for m in measurements))
    return Choice(decision, ())


def read_decision(path: str) -> Decision:
    """The decision of a run directory, or of its manifest.json."""
    file = Path(path) / "manifest.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"`engine.reuse` must be a run directory or its manifest.json; got {path!r}")
    try:
        return Decision.from_dict(dict(read_json(file)["engine"]["decision"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"`engine.reuse`: {file} holds no engine decision; is it a manifest.json?") from None


def _measure(study: Study, requests: dict[str, Any], cache: str | None) -> Choice:
    """Measure on the first step of the attack: its first pictures, views, and start."""
    views, rows = study.views.per_step * (1 if study.views.adaptive is None else VIEWS), study.queries.attacked
    count, exclusions = len(rows), hidden_rows(study.gallery, study.queries, study.truth)
    picture_count = min(count, max(1, ROWS[study.device.type == "cuda"] // views))
    study = study.only(rows[:picture_count])
    images = study.queries.images.to(study.device)
    delta = study.perturbation.start(images, torch.Generator().manual_seed(stream(study.seed, "start")))
    eot = EOT(study.transforms, study.draws, views=views, risk=study.risk)
    u = eot.points(stream(study.seed, "attack"), 0, images)
    with torch.no_grad():
        embeddings = gallery = study.encoder(images)
        if wants_gallery(study.objective):
            embedding_cache = cache_of(cache, study.encoder, study.identity, images[:1], Decision())
            gallery = embed_gallery(study.gallery, study.encoder, study.device, BLOCK, embedding_cache).rows
    knowledge = Knowledge(images, embeddings, gallery, study.truth, study.goal, study.gallery.label_numbers)
    knowledge = knowledge.drop(exclusions) if gallery is not embeddings else knowledge

    def trial(encoder: Encoder, chunk: int) -> Trial:
        problem = Problem(images, anchor, encoder, objective, study.perturbation)
        estimate = replace(eot, chunk=chunk).estimate(problem, delta, u)
        return Trial(estimate.grad, estimate.snr)

    total = 2 * count * study.views.gradients  # both optimised arms
    with watching_layers(study.encoder, study.objective) as encoder:
        objective, anchor = aim_of(study.objective, knowledge, encoder, study.transforms, study.seed)
        return choose(encoder, trial, requests, rows=picture_count * views, total_views=total, device=study.device)
