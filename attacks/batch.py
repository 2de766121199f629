"""One batch of an experiment: its pictures attacked, written to files, and judged from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attacks.aims import Known, aim
from attacks.arms import Counted, Setting, Trace, check, optimise
from attacks.build import Parts
from attacks.distributed import World
from attacks.drift import VIEWS, Drift, layer_drift
from attacks.evaluation import Bank, Scores, signature_of
from attacks.exhibits import Exhibits
from attacks.judge import Judge, resisting
from attacks.layers import Pool
from attacks.objectives import Away
from attacks.parts import among
from attacks.sanity import Sanity
from attacks.schema import Run
from attacks.solver import written
from attacks.worst import uphill
from transforms import Shown, stream

#: Of an experiment, in the order of its tables; `one_view` only where it is asked for.
ARMS = ("clean", "noise", "no_eot", "one_view", "eot")
#: The bank of views that the attack's own distribution gives; the first of all.
SAME = "same"
#: And of a wider one.
WIDE = "wide"
#: Views of each picture, the worst for the attacker, from which the search for a worse one starts.
KEPT = 4


@dataclass(frozen=True)
class Spent:
    """Encoder passes, in views, and seconds."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.forward + other.forward, self.backward + other.backward, self.seconds + other.seconds)


class Meter:
    """Counts the passes of some encoders on all processes, and the seconds, from one reading to the next."""

    def __init__(self, encoders: Iterable[Counted], world: World) -> None:
        self.encoders = list({id(each): each for each in encoders}.values())
        self.world = world
        self.last = self._now()

    def read(self) -> Spent:
        """What was spent since the last reading; every process must call it."""
        now = self._now()
        forward, backward, seconds = (b - a for a, b in zip(self.last, now, strict=True))
        self.last = now
        passes = torch.tensor([forward, backward], dtype=torch.long)
        self.world.sum(passes)
        return Spent(int(passes[0]), int(passes[1]), seconds)

    def _now(self) -> tuple[int, int, float]:
        forward = sum(each.forward for each in self.encoders)
        return forward, sum(each.backward for each in self.encoders), time.perf_counter()


@dataclass(frozen=True, eq=False)
class Bench:
    """What all batches of a run share: encoders made ready, the judge, the banks, and where files go."""

    run: Run
    parts: Parts
    world: World
    module: nn.Module  # the encoder as the objective wants it
    encoder: Counted  # that, as the engine runs it; it gives the gradients
    exact: Counted  # that, in full precision; it gives the anchors
    counted: Counted  # the plain encoder in full precision; it scores
    judge: Judge
    banks: dict[str, Bank]
    layers: dict[str, Pool]
    exhibits: Exhibits
    chunk: int
    follow: Callable[[Trace], None] | None = None  # told of each step

    def meter(self) -> Meter:
        """A meter of all three encoders, which may be one."""
        return Meter((self.encoder, self.counted, self.exact), self.world)


@dataclass(frozen=True)
class Found:
    """What a batch gave: of the pictures `rows` the scores by bank and arm, each one's cosine in its worst view, the
    norm of what was changed, the deltas as the files hold them, and the way there. `drift` of the layers that the
    run asks for; `sanity` of the first batch."""

    rows: tuple[int, ...]
    scores: dict[str, dict[str, Scores]]
    worst: dict[str, Tensor]
    budget: dict[str, Tensor]
    saved: dict[str, Tensor]
    trace: tuple[Trace, ...]
    costs: dict[str, Spent] = field(default_factory=dict)
    sanity: Sanity | None = None
    drift: Drift | None = None


def arms_of(run: Run) -> tuple[str, ...]:
    """The arms of a run, in the order of its tables."""
    return tuple(arm for arm in ARMS if arm != "one_view" or run.evaluate.one_view)


def part_of(parts: Parts, rows: Sequence[int]) -> Parts:
    """The parts with some of the pictures only."""
    chosen = torch.tensor(list(rows))
    queries = parts.queries
    some = replace(queries, names=tuple(queries.names[i] for i in rows), images=queries.images[chosen], places=None)
    goal = None if parts.goal is None else parts.goal[chosen]
    perturbation = among(parts.perturbation, chosen)
    return replace(parts, queries=some, truth=parts.truth[chosen], goal=goal, perturbation=perturbation)


def attacked(bench: Bench, rows: Sequence[int], number: int) -> Found:
    """Run the arms on the pictures `rows`, batch `number` of the run; write their files, and judge these."""
    run, world = bench.run, bench.world
    meter, costs = bench.meter(), {}
    # Noise, starts and views are each batch's own.
    seed = stream(run.seed, "batch", number) if number else run.seed
    setting, known = setup(bench, part_of(bench.parts, rows), rows, seed)
    setting = replace(setting, batch=number, follow=bench.follow)
    parts, images = setting.parts, known.images
    costs["anchors"] = meter.read()

    seed = stream(setting.seed, "noise")
    deltas = {"noise": parts.perturbation.noise(images, torch.Generator().manual_seed(seed))}
    best, eot = optimise("eot", setting, known)
    deltas["eot"], costs["eot"], trace = best.delta, meter.read(), {"eot": eot}
    for arm in arms_of(run)[2:-1]:
        best, trace[arm] = optimise(arm, setting, known, spent=-(-eot[-1].evals // len(images)))
        deltas[arm], costs[arm] = best.delta, meter.read()
    sanity = check(setting, known, eot, bench.module) if number == 0 else None
    meter.read()  # a cost of its own

    saved = {arm: parts.perturbation.quantise(deltas[arm], images) for arm in arms_of(run)[1:]}
    files = {"clean": images} | {arm: written(parts.perturbation, images, delta) for arm, delta in saved.items()}
    bench.exhibits.write(rows, files, saved)
    shown = {arm: bench.exhibits.shown(arm, rows) for arm in arms_of(run)}
    chosen = torch.tensor(list(rows))
    scores = {
        name: {arm: bench.judge(shown[arm], chosen, bank, _title(arm, name, number)) for arm in arms_of(run)}
        for name, bank in bench.banks.items()
    }
    own = bench.judge.own[chosen.to(bench.judge.own.device)]
    worst = {arm: _worst(bench, shown[arm], own, scores[SAME][arm]) for arm in arms_of(run)}
    costs["judging"] = meter.read()
    drift = None
    if bench.layers:
        bank = bench.banks[SAME]
        some, others = bank._replace(u=bank.u[:VIEWS]), {arm: shown[arm] for arm in arms_of(run)[1:]}
        clean = bench.exhibits.pictures("clean", rows)
        drift = layer_drift(parts.encoder, clean, others, some, bench.layers, chunk=bench.chunk, world=world)
    budget = {arm: parts.perturbation.norm(bench.exhibits.pictures(arm, rows) - images).cpu() for arm in arms_of(run)}
    ordered = [line for arm in arms_of(run) for line in trace.get(arm, [])]
    return Found(
        tuple(rows),
        scores,
        worst,
        budget,
        {arm: delta.cpu().contiguous() for arm, delta in saved.items()},
        tuple(ordered),
        costs,
        sanity,
        drift,
    )


def setup(bench: Bench, parts: Parts, rows: Sequence[int], seed: int) -> tuple[Setting, Known]:
    """How the pictures `rows` are attacked with their `parts` (see `part_of`), and what is known of them."""
    run, judge = bench.run, bench.judge
    images = parts.queries.images.to(parts.device)
    own = judge.own[torch.tensor(list(rows), device=judge.own.device)]
    known = Known(images, own, judge.gallery, parts.truth, parts.goal, parts.gallery.identity)
    exact = bench.exact if bench.world.first else bench.exact.encoder  # every process does it, for the same answer
    found = aim(run.objective, known, exact, parts.transforms, run.seed)
    return Setting(run, parts, bench.world, bench.encoder, found, bench.chunk, seed), known


def _title(arm: str, bank: str, number: int) -> str:
    return f"judging {arm}" + (f", {bank}" if bank != SAME else "") + (f", batch {number}" if number else "")


def refinable(run: Run, parts: Parts) -> int:
    """The steps of gradient toward the worst view. None with a target: the worst view is then the one least like the
    target, and a view without anything in it would win. None for an encoder compared by its bits: they have no
    slope."""
    plain = parts.goal is None and signature_of(parts.encoder) is None
    return run.evaluate.refine if plain else 0


def _worst(bench: Bench, shown: Shown, own: Tensor, scores: Scores) -> Tensor:
    """Of each picture the cosine (n,) to its clean embedding in the view that resists the attacker most."""
    if bench.parts.goal is not None:
        return resisting(scores)
    found = uphill(
        shown,
        own,
        encoder=bench.counted,
        objective=Away(),
        views=bench.banks[SAME],
        losses=scores.cosine.to(own.device),
        refine_steps=refinable(bench.run, bench.parts),
        keep=KEPT,
        chunk=bench.chunk,
        world=bench.world,
    )
    return found.losses[:, 0].cpu()
