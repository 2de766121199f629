"""The main experiment: attack pictures, write them to files, and score the files on held-out views.

All arms are scored alike: `clean`, `noise` (same budget, no optimisation), `no_eot` (same optimiser and at most as
many gradients, of the untransformed picture), `one_view` (as many gradients, one random view per step; only where
`eot` may have several) and `eot`. The iterates of the last three are chosen on the same views. Pictures are attacked
in units, and the result of each unit is stored in a checkpoint file.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from attacks.data.images import file_names, save_image
from attacks.encoders.engine import Decision, prepare
from attacks.eot.bank import Bank, bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.drift import Drift, layer_order
from attacks.evaluation.judge import Judge, concatenate
from attacks.evaluation.sanity.check import Sanity, skipped
from attacks.evaluation.scores import embed, signature_method
from attacks.experiment.arms import csv
from attacks.experiment.artifacts import SHOWN, Exhibits, placement, sheet
from attacks.experiment.batch import SAME, WIDE, BatchResult, Bench, Failure, arms_of, part_of, refinable
from attacks.experiment.cost import Counted, Spent
from attacks.experiment.embeddings import cache_of, embedded
from attacks.experiment.outcome import Outcome
from attacks.experiment.view_scores import ViewScores, write_scores
from attacks.runtime.checkpoint import Checkpoint
from attacks.runtime.distributed import World
from attacks.runtime.files import write_bytes, write_json, write_text
from attacks.schema.patch import PatchConfig
from attacks.schema.validate import Run
from attacks.solvers.trace import Trace
from attacks.study.study import Parts
from transforms import Compose
from transforms.wrappers import widened

#: Why a run has no sanity checks although they were configured.
UNCHECKED = "they are made with the first picture, and that has failed"


class Session(NamedTuple):
    """Where an experiment runs: the processes that share it, its directory, its checkpoint, and a function to call
    after each step."""

    world: World
    out: Path
    checkpoint: Checkpoint
    follow: Callable[[Trace], None] | None = None


class Setup(NamedTuple):
    """The bench of an experiment, what it cost, and how many gallery embeddings came from the cache."""

    bench: Bench
    spent: Spent
    cached: int


def set_up(run: Run, parts: Parts, module: nn.Module, decision: Decision, session: Session) -> Setup:
    """Prepare encoders, gallery, judge and views.

    Args:
        module: the encoder, reading the objective's layers (see `attacks.study.objective.watched`).
    """
    setup = bench_of(run, parts, module, decision, session.world, session.out)
    # as the first attempt measured it
    spent, cached = session.checkpoint.once("gallery", lambda: (setup.spent, setup.cached))
    return Setup(replace(setup.bench, follow=session.follow, checkpoint=session.checkpoint), spent, cached)


def outcome_of(setup: Setup, results: list[BatchResult], failed: list[Failure]) -> Outcome:
    """The outcome of an experiment from the results of its units (see `attacks.experiment.units.work`). Writes
    `adversarial.png`, `perturbation.safetensors`, `scores.safetensors`, `steps.csv`, and of a patch `placement.json`
    (the first process of the world does); the pictures are written already."""
    left = len(setup.bench.parts.queries) - sum(len(result.rows) for result in results) - len(failed)
    outcome = replace(gathered(setup, results), failed=tuple(failed), left=left)
    if outcome.bench.world.first:
        _write(outcome.bench.exhibits.out, outcome, results)
    return outcome


def bench_of(run: Run, parts: Parts, module: nn.Module, decision: Decision, world: World, out: Path) -> Setup:
    began = time.perf_counter()
    full = replace(decision, precision="float32")
    encoder = Counted(prepare(module, decision))
    same = module is parts.encoder and full == decision
    judge = encoder if same else Counted(prepare(parts.encoder, full))
    exact = judge if module is parts.encoder else Counted(prepare(module, full))
    images = parts.queries.images
    first = images[:1].to(parts.device)
    layers = layer_order(parts.encoder, run.evaluate.layers, first) if run.evaluate.layers else {}
    cache = cache_of(run, parts.encoder, full, parts.device)
    gallery, passed, cached, notes = embedded(
        parts.gallery, judge.encoder, parts.device, decision.chunk, cache, keep=world.first
    )
    if world.first:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    own = gallery[parts.truth]
    if isinstance(parts.gallery, Classes):  # its rows are texts
        embeddings = embed(images, judge.encoder, parts.device, decision.chunk)
        assert isinstance(embeddings, Tensor)
        own, passed = embeddings, passed + len(images)
    signature = signature_method(parts.encoder)
    right = (parts.gallery, parts.truth, parts.goal)
    judges = Judge(judge, own, gallery, *right, run.evaluate.neighbours, decision.chunk, world, signature)
    names = tuple(file_names(parts.queries.names))
    exhibits = Exhibits(out, names, images, parts.perturbation, parts.device, world)
    banks = _banks(run, parts.transforms, first)
    bench = Bench(run, parts, world, module, encoder, exact, judge, judges, banks, layers, exhibits, decision.chunk)
    return Setup(bench, Spent(passed, 0, time.perf_counter() - began), cached)


def _banks(run: Run, transforms: Compose, like: Tensor) -> dict[str, Bank]:
    """Held-out views of the attack's own distribution, and of a wider one if configured."""
    views = run.evaluate.views
    banks = {SAME: bank(transforms, views, seed=run.seed, purpose="evaluate")}
    if run.evaluate.wide > 1 and transforms.dims:
        wide = widened(transforms, run.evaluate.wide)
        banks[WIDE] = bank(wide, views, seed=run.seed, purpose="evaluate wide")
    return {name: each._replace(u=each.u.to(like.dtype)) for name, each in banks.items()}


def narrowed(bench: Bench, rows: list[int]) -> Bench:
    """The bench of the pictures `rows`, without those that failed."""
    if len(rows) == len(bench.parts.queries):
        return bench
    parts, chosen = part_of(bench.parts, rows), torch.tensor(rows)
    judge, exhibits = bench.judge, bench.exhibits
    own = judge.own[chosen.to(judge.own.device)]
    judge = replace(judge, own=own, truth=parts.truth, goal=parts.goal)
    names = tuple(exhibits.names[row] for row in rows)
    exhibits = replace(exhibits, names=names, images=parts.queries.images, perturbation=parts.perturbation)
    return replace(bench, parts=parts, judge=judge, exhibits=exhibits)


def gathered(setup: Setup, results: Sequence[BatchResult]) -> Outcome:
    """The results of some batches as one."""
    bench = narrowed(setup.bench, [row for result in results for row in result.rows])
    first, arms = results[0], arms_of(bench.run, bench.parts)
    sanity = next((result.sanity for result in results if result.sanity is not None), None)
    if sanity is None and bench.run.sanity.pictures:
        sanity = Sanity((skipped("all", UNCHECKED),), {"forward": 0, "backward": 0, "seconds": 0.0})
    costs = {"gallery": setup.spent}
    for result in results:
        for name, cost in result.costs.items():
            costs[name] = costs.get(name, Spent()) + cost
    drift = None
    if first.drift is not None:
        each = [result.drift for result in results if result.drift is not None]
        cosine = {arm: torch.cat([d.cosine[arm] for d in each], dim=1) for arm in first.drift.cosine}
        drift = Drift(first.drift.layers, cosine, sum(d.forward for d in each), sum(d.seconds for d in each))
    scores = {
        name: {arm: concatenate([r.scores[name][arm] for r in results]) for arm in arms} for name in bench.banks
    }
    return Outcome(
        bench,
        scores,
        {arm: torch.cat([result.worst[arm] for result in results]) for arm in arms},
        {arm: torch.cat([result.budget[arm] for result in results]) for arm in arms},
        {arm: torch.cat([result.chosen[arm] for result in results]) for arm in first.chosen},
        [line for result in results for line in result.trace],
        costs,
        setup.cached,
        refinable(bench.run, bench.parts),
        sanity,
        drift,
        fell_back=tuple(sorted({arm for result in results for arm in result.fell_back})),
    )


def _write(out: Path, outcome: Outcome, results: list[BatchResult]) -> None:
    bench, parts = outcome.bench, outcome.bench.parts
    rows = range(min(SHOWN, len(parts.queries)))
    save_image(out / "adversarial.png", sheet(bench.exhibits.alone.pictures("eot", rows).cpu()))
    shared = parts.perturbation.shared
    saved = {
        arm: results[0].saved[arm] if shared else torch.cat([result.saved[arm] for result in results])
        for arm in results[0].saved
    }
    write_bytes(out / "perturbation.safetensors", save(saved))
    if isinstance(bench.run.perturbation, PatchConfig):
        goal = None if parts.goal is None else parts.gallery.names[int(parts.goal[0])]
        images, names = parts.queries.images, list(bench.exhibits.names)
        placed = placement(parts.perturbation, names, images, bench.run, goal)
        write_json(out / "placement.json", placed)
    write_text(out / "steps.csv", csv(outcome.trace))
    everyone = torch.arange(len(parts.queries))
    success = {
        bank: {arm: outcome.bench.judge.success(scores, everyone) for arm, scores in arms.items()}
        for bank, arms in outcome.scores.items()
    }
    write_scores(out, ViewScores(outcome.scores, success, outcome.worst, outcome.chosen))
