"""The main job: attack pictures, write them to files, and judge the files on views that no attack has seen.

The arms are judged alike: `clean`, `noise` (same budget, no optimisation), `no_eot` (the same optimiser and as many
encoder passes, but only the picture itself is looked at), `one_view` (as many passes, one random view a step; only
where it is asked for) and `eot`. Pictures are taken in units; what each unit gave is kept in a file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from attacks.data.images import file_names, save_image
from attacks.encoders.engine import Decision, prepare
from attacks.eot.bank import Bank, bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.drift import Drift, ordered
from attacks.evaluation.judge import Judge, joined
from attacks.evaluation.sanity.check import Sanity, skipped
from attacks.evaluation.scores import Scores, embed, signature_of
from attacks.experiment.arms import csv
from attacks.experiment.artifacts import Exhibits, placement, sheet
from attacks.experiment.batch import SAME, WIDE, Bench, Found, arms_of, part_of, refinable
from attacks.experiment.cost import Counted, Spent
from attacks.experiment.embeddings import cache_of, embedded
from attacks.experiment.parts import Parts
from attacks.experiment.units import work
from attacks.runtime.checkpoint import Checkpoint
from attacks.runtime.distributed import World
from attacks.runtime.files import write_bytes, write_json, write_text
from attacks.runtime.ledger import Failure, Ledger
from attacks.schema.patch import PatchConfig
from attacks.schema.validate import Run
from attacks.solvers.trace import Trace
from transforms import Compose, widened

#: The most pictures that `adversarial.png` shows.
SHOWN = 64
#: Of a run without sanity checks that was to have some.
UNCHECKED = "they are made with the first picture, and that has failed"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an experiment found: by bank and arm the scores of all pictures, of each the cosine in its worst view, the
    largest norm of what was changed, the way there, the costs by arm, and of the first batch the sanity checks."""

    bench: Bench
    scores: dict[str, dict[str, Scores]]
    worst: dict[str, Tensor]  # of each picture the cosine (N,) of its worst view for the attacker
    budget: dict[str, Tensor]
    trace: list[Trace]
    costs: dict[str, Spent]
    cached: int  # pictures of the gallery that needed no pass
    refined: int  # steps of gradient that lead to the worst views, from the worst of the bank
    sanity: Sanity | None
    drift: Drift | None  # of the layers that the run asks for
    failed: tuple[Failure, ...] = ()  # pictures that are in no table
    fallen: tuple[str, ...] = ()  # arms that went on in float32, the engine's precision being not enough

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order of the tables."""
        return tuple(self.scores[SAME])

    @property
    def cost(self) -> Spent:
        """Of the whole run, without what the sanity checks and the look into the layers cost.

        Not counted is what looks at the encoder before the run: the engine's measurement (which may fill the cache),
        and the one look at each picture that has a class to be told."""
        return sum(self.costs.values(), Spent())


def experiment(
    run: Run,
    parts: Parts,
    module: nn.Module,
    decision: Decision,
    world: World,
    out: Path,
    ledger: Ledger | None,
    checkpoint: Checkpoint,
    follow: Callable[[Trace], None] | None = None,
) -> Outcome:
    """Run all arms; write `pictures/`, `adversarial.png`, `perturbation.safetensors` and `steps.csv` to `out` (the
    first process of `world` does). What is in the checkpoint already is taken up.

    Args:
        module: the encoder as the objective wants it (see `attacks.experiment.build.objective.watched`).
        ledger: of the first process of `world`, which says which pictures are this world's.
        follow: is told of each step.

    Raises:
        Elsewhere: the pictures are done, and another process makes the tables.
    """
    bench, spent, cached = _bench(run, parts, module, decision, world, out)
    bench = replace(bench, follow=follow, checkpoint=checkpoint)
    spent, cached = checkpoint.once("gallery", lambda: (spent, cached))  # as the first process had it
    founds, failed = work(bench, ledger)
    bench = _narrowed(bench, [row for found in founds for row in found.rows])
    outcome = replace(_gathered(bench, founds, spent, cached), failed=tuple(failed))
    if world.first:
        _write(out, outcome, founds)
    return outcome


def _bench(
    run: Run, parts: Parts, module: nn.Module, decision: Decision, world: World, out: Path
) -> tuple[Bench, Spent, int]:
    """What all batches share, what it cost, and how many pictures of the gallery needed no pass."""
    began = time.perf_counter()
    full = replace(decision, precision="float32")
    encoder = Counted(prepare(module, decision))
    same = module is parts.encoder and full == decision
    judge = encoder if same else Counted(prepare(parts.encoder, full))
    exact = judge if module is parts.encoder else Counted(prepare(module, full))
    images = parts.queries.images
    first = images[:1].to(parts.device)
    layers = ordered(parts.encoder, run.evaluate.layers, first) if run.evaluate.layers else {}
    cache = cache_of(run, parts.encoder, full, parts.device)
    gallery, passed, cached, notes = embedded(
        parts.gallery, judge.encoder, parts.device, decision.chunk, cache, keep=world.first
    )
    if world.first:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    own = gallery[parts.truth]
    if isinstance(parts.gallery, Classes):  # its rows are texts
        found = embed(images, judge.encoder, parts.device, decision.chunk)
        assert isinstance(found, Tensor)
        own, passed = found, passed + len(images)
    signature = signature_of(parts.encoder)
    judges = Judge(
        judge,
        own,
        gallery,
        parts.gallery,
        parts.truth,
        parts.goal,
        run.evaluate.neighbours,
        decision.chunk,
        world,
        signature,
    )
    names = tuple(file_names(parts.queries.names))
    exhibits = Exhibits(out, names, images, parts.perturbation, parts.device, world)
    banks = _banks(run, parts.transforms, first)
    bench = Bench(run, parts, world, module, encoder, exact, judge, judges, banks, layers, exhibits, decision.chunk)
    return bench, Spent(passed, 0, time.perf_counter() - began), cached


def _banks(run: Run, transforms: Compose, like: Tensor) -> dict[str, Bank]:
    """Views of the attack's own distribution, and of a wider one, if that is asked for: of streams of their own."""
    views = run.evaluate.views
    banks = {SAME: bank(transforms, views, seed=run.seed, purpose="evaluate")}
    if run.evaluate.wide > 1 and transforms.dims:
        wide = widened(transforms, run.evaluate.wide)
        banks[WIDE] = bank(wide, views, seed=run.seed, purpose="evaluate wide")
    return {name: each._replace(u=each.u.to(like)) for name, each in banks.items()}


def _narrowed(bench: Bench, rows: list[int]) -> Bench:
    """The bench of the pictures `rows`: those that have failed have no place in a table."""
    if len(rows) == len(bench.parts.queries):
        return bench
    parts, chosen = part_of(bench.parts, rows), torch.tensor(rows)
    judge, exhibits = bench.judge, bench.exhibits
    own = judge.own[chosen.to(judge.own.device)]
    judge = replace(judge, own=own, truth=parts.truth, goal=parts.goal)
    names = tuple(exhibits.names[row] for row in rows)
    exhibits = replace(exhibits, names=names, images=parts.queries.images, perturbation=parts.perturbation)
    return replace(bench, parts=parts, judge=judge, exhibits=exhibits)


def _gathered(bench: Bench, founds: list[Found], spent: Spent, cached: int) -> Outcome:
    """All batches as one."""
    first, arms = founds[0], arms_of(bench.run)
    sanity = next((found.sanity for found in founds if found.sanity is not None), None)
    if sanity is None and bench.run.sanity.pictures:
        sanity = Sanity((skipped("all", UNCHECKED),), {"forward": 0, "backward": 0, "seconds": 0.0})
    costs = {"gallery": spent}
    for found in founds:
        for name, cost in found.costs.items():
            costs[name] = costs.get(name, Spent()) + cost
    drift = None
    if first.drift is not None:
        each = [found.drift for found in founds if found.drift is not None]
        cosine = {arm: torch.cat([d.cosine[arm] for d in each], dim=1) for arm in first.drift.cosine}
        drift = Drift(first.drift.layers, cosine, sum(d.forward for d in each), sum(d.seconds for d in each))
    return Outcome(
        bench,
        {name: {arm: joined([found.scores[name][arm] for found in founds]) for arm in arms} for name in bench.banks},
        {arm: torch.cat([found.worst[arm] for found in founds]) for arm in arms},
        {arm: torch.cat([found.budget[arm] for found in founds]) for arm in arms},
        [line for found in founds for line in found.trace],
        costs,
        cached,
        refinable(bench.run, bench.parts),
        sanity,
        drift,
        fallen=tuple(sorted({arm for found in founds for arm in found.fallen})),
    )


def _write(out: Path, outcome: Outcome, founds: list[Found]) -> None:
    bench, parts = outcome.bench, outcome.bench.parts
    rows = range(min(SHOWN, len(parts.queries)))
    save_image(out / "adversarial.png", sheet(bench.exhibits.alone.pictures("eot", rows).cpu()))
    shared = parts.perturbation.shared
    saved = {
        arm: founds[0].saved[arm] if shared else torch.cat([found.saved[arm] for found in founds])
        for arm in founds[0].saved
    }
    write_bytes(out / "perturbation.safetensors", save(saved))
    if isinstance(bench.run.perturbation, PatchConfig):  # it has a width in millimetres
        goal = None if parts.goal is None else parts.gallery.names[int(parts.goal[0])]
        images, names = parts.queries.images, list(bench.exhibits.names)
        placed = placement(parts.perturbation, names, images, bench.run.perturbation, goal)
        write_json(out / "placement.json", placed)
    write_text(out / "steps.csv", csv(outcome.trace))
