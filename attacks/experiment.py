"""The main job: attack pictures, write them to files, and judge the files on views that no attack has seen.

The arms are judged alike: `clean`, `noise` (same budget, no optimisation), `no_eot` (the same optimiser and as many
encoder passes, but only the picture itself is looked at), `one_view` (as many passes, one random view a step; only
where it is asked for) and `eot`. Pictures are taken in batches; what each batch gave is kept in a file.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attacks.arms import Counted, Trace, csv
from attacks.batch import SAME, WIDE, Bench, Found, Spent, arms_of, attacked, refinable
from attacks.batch_files import read_batch, write_batch
from attacks.build import Parts
from attacks.distributed import World
from attacks.drift import Drift, ordered
from attacks.embeddings import cache_of, embedded
from attacks.encoders.weights import fingerprint
from attacks.engine import Decision, prepare
from attacks.evaluation import Bank, Scores, bank, embed, signature_of
from attacks.exhibits import Exhibits, file_names, placement, sheet
from attacks.files import atomic, write_json, write_text
from attacks.images import save_image
from attacks.judge import Judge, joined
from attacks.patch import Patch
from attacks.sanity import Sanity
from attacks.schema import Run
from attacks.zero_shot import Classes
from transforms import Compose, widened

#: The most pictures that `adversarial.png` shows.
SHOWN = 64


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
    follow: Callable[[Trace], None] | None = None,
) -> Outcome:
    """Run all arms; write `pictures/`, `batches/`, `adversarial.png`, `perturbation.safetensors` and `steps.csv` to
    `out` (the first process of `world` does). Batches that are there already are taken up.

    Args:
        module: the encoder as the objective wants it (see `attacks.aims.watched`).
        follow: is told of each step.
    """
    bench, spent, cached = _bench(run, parts, module, decision, world, out)
    bench = replace(bench, follow=follow)
    founds = list(_batches(bench, decision, out))
    outcome = _gathered(bench, founds, spent, cached)
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


def _batches(bench: Bench, decision: Decision, out: Path) -> Iterator[Found]:
    count, size = len(bench.parts.queries), bench.run.evaluate.batch
    size = count if size is None or bench.parts.perturbation.shared else size
    key, out = _key(bench, decision), Path(bench.world.agree(str(out.resolve())))  # others have none of their own
    for number, start in enumerate(range(0, count, size)):
        path = out / "batches" / f"{number:05d}.safetensors"
        if bench.world.agree(path.exists()):
            yield read_batch(path, key)
            continue
        found = attacked(bench, range(start, min(start + size, count)), number)
        if bench.world.first:
            write_batch(path, found, key)
        yield found


def _key(bench: Bench, decision: Decision) -> str:
    """All that a batch's numbers depend on."""
    run, parts = bench.run, bench.parts
    pixels = (parts.queries.images * 255).round().to(torch.uint8).contiguous()
    said = {
        "config": {name: value for name, value in asdict(run).items() if name not in ("engine", "show", "tracker")},
        "encoder": fingerprint(parts.encoder),
        "engine": decision.to_dict(),
        "names": parts.queries.names,
        "pictures": hashlib.sha256(pixels.numpy().data).hexdigest(),
        "gallery": parts.gallery.names if isinstance(parts.gallery, Classes) else parts.gallery.digests,
        "right": [
            None if rows is None else rows.tolist() for rows in (parts.truth, parts.goal, parts.gallery.identity)
        ],
        "processes": bench.world.size,
        "threads": torch.get_num_threads(),
    }
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()


def _gathered(bench: Bench, founds: list[Found], spent: Spent, cached: int) -> Outcome:
    """All batches as one."""
    first, arms = founds[0], arms_of(bench.run)
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
        first.sanity,
        drift,
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
    with atomic(out / "perturbation.safetensors") as temporary:
        save_file(saved, temporary)
    if isinstance(parts.perturbation, Patch):
        goal = None if parts.goal is None else parts.gallery.names[int(parts.goal[0])]
        images, names = parts.queries.images, list(bench.exhibits.names)
        placed = placement(parts.perturbation, names, images, bench.run.perturbation, goal)
        write_json(out / "placement.json", placed)
    write_text(out / "steps.csv", csv(outcome.trace))
