"""One batch of an experiment: attack its pictures, write the files, and score the files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.engine import engine_state
from attacks.encoders.layers import Pool
from attacks.eot.bank import Bank, judged
from attacks.evaluation.drift import VIEWS, Drift, layer_drift
from attacks.evaluation.judge import Judge, resisting
from attacks.evaluation.ranking import Rows
from attacks.evaluation.sanity.check import Sanity
from attacks.evaluation.scores import Scores, signature_method
from attacks.experiment.arms import Setting, check, optimise
from attacks.experiment.artifacts import Exhibits
from attacks.experiment.cost import Counted, Meter, Spent
from attacks.objectives.aim import Known
from attacks.objectives.embedding import Away
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.distributed import World
from attacks.runtime.stored import stored
from attacks.schema.encoder import SAMPLING
from attacks.schema.validate import Run
from attacks.solvers.solver import Best
from attacks.solvers.trace import Trace
from attacks.solvers.worst import uphill
from attacks.study.data import hidden
from attacks.study.objective import aim
from attacks.study.study import Parts
from transforms.draws import stream
from transforms.scene import Shown

#: The arms of an experiment, in the order of its tables; `one_view` is optional.
ARMS = ("clean", "noise", "no_eot", "one_view", "eot")
#: The banks of views: of the attack's own distribution, and of a wider one.
SAME, WIDE = "same", "wide"
#: A task of a unit: its name, what its cost is added to, and how its result is made.
Task = Callable[[str, str, Callable[[], Any]], Any]
#: Worst views of each picture from which the gradient search for a worse one starts.
KEPT = 4


@dataclass(frozen=True, eq=False)
class Bench:
    """What all batches of a run share: the prepared encoders, the judge, the banks of views, and the output files."""

    run: Run
    parts: Parts
    world: World
    module: nn.Module  # the encoder, with the layers that the objective reads
    encoder: Counted  # `module` as the engine runs it, for the gradients
    exact: Counted  # `module` in full precision, for the anchors
    counted: Counted  # the plain encoder in full precision, for the scores
    judge: Judge
    banks: dict[str, Bank]
    layers: dict[str, Pool]
    exhibits: Exhibits
    chunk: int
    follow: Callable[[Trace], None] | None = None  # called after each step
    checkpoint: Checkpoint = NOWHERE

    def meter(self) -> Meter:
        """A meter of all encoders; some may be the same object."""
        return Meter((self.encoder, self.counted, self.exact), self.world)


@dataclass(frozen=True)
class Unit:
    """Pictures [start, stop) of a run that are attacked together: batch `number`, or one picture of it that is tried
    again `alone`."""

    start: int
    stop: int
    number: int
    alone: bool = False

    @property
    def name(self) -> str:
        """The stem of its checkpoint files."""
        return f"{self.start:06d}-{self.stop:06d}"

    def seed(self, seed: int) -> int:
        """The unit's own seed of noise, starts and views."""
        if self.alone:
            return stream(seed, "alone", self.start)
        return stream(seed, "batch", self.number) if self.number else seed


@stored("batch_result")
@dataclass(frozen=True)
class BatchResult:
    """The result of a batch: for the pictures `rows` the scores by bank and arm, the cosine in the worst view, the
    norm of the change, the deltas as saved, and the trace. `chosen` by optimised arm: after how many steps (N,) each
    picture's perturbation was chosen (of a suite, within its member). `sanity` exists for the first batch only. The
    arms `fell_back` continued in float32 because the engine's precision did not suffice. `files`: the SHA-256 of each
    picture that was written, by its path in the run directory."""

    rows: tuple[int, ...]
    scores: dict[str, dict[str, Scores]]
    worst: dict[str, Tensor]
    budget: dict[str, Tensor]
    saved: dict[str, Tensor]
    trace: tuple[Trace, ...]
    chosen: dict[str, Tensor]
    costs: dict[str, Spent] = field(default_factory=dict)
    sanity: Sanity | None = None
    drift: Drift | None = None
    fell_back: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


@stored("failure")
class Failure(NamedTuple):
    """A picture that is given up."""

    picture: int
    name: str
    reason: str


def arms_of(run: Run, parts: Parts) -> tuple[str, ...]:
    """The arms of a run, in the order of its tables. There is no `one_view` where `eot` is that itself,
    nor of NES and its like, whose views are the losses of a step."""
    several = parts.views.several or getattr(run.attack, "adversary", None) is not None
    several = several and run.optimiser.name not in SAMPLING
    return tuple(arm for arm in ARMS if arm != "one_view" or (run.evaluate.one_view and several))


def part_of(parts: Parts, rows: Sequence[int]) -> Parts:
    """The parts with the pictures `rows` only."""
    chosen = torch.tensor(list(rows))
    some = parts.queries.only(rows)
    goal = None if parts.goal is None else parts.goal[chosen]
    perturbation = parts.perturbation.take(chosen)
    return replace(parts, queries=some, truth=parts.truth[chosen], goal=goal, perturbation=perturbation)


def attacked(bench: Bench, unit: Unit) -> BatchResult:
    """Run the arms on the pictures of a unit, write the files, and score them. Results in the checkpoint are
    reused."""
    run, rows, number = bench.run, range(unit.start, unit.stop), unit.number
    meter, seed = bench.meter(), unit.seed(run.seed)
    costs: dict[str, Spent] = {}
    checkpoint = bench.checkpoint.under(unit.name)

    def task(name: str, cost: str, make: Callable[[], Any]) -> Any:
        result, spent = checkpoint.once(name, lambda: (make(), meter.read()))
        costs[cost] = costs.get(cost, Spent()) + spent
        meter.read()
        return result

    parts, fit = part_of(bench.parts, rows), [row for row in bench.parts.queries.attacked if row in rows]
    setting, known = setup(bench, part_of(bench.parts, fit), fit, seed)
    setting = replace(setting, batch=number, follow=bench.follow)
    images, arms = parts.queries.images.to(parts.device), arms_of(run, parts)
    costs["anchors"] = meter.read()

    noise = torch.Generator().manual_seed(stream(seed, "noise"))
    deltas = {"noise": parts.perturbation.noise(images, noise)}
    trace: dict[str, list[Trace]] = {}
    fell_back: set[str] = set()
    chosen: dict[str, Tensor] = {}
    for arm in ("eot", *arms[2:-1]):
        evals = 0 if arm == "eot" else trace["eot"][-1].evals // len(fit)
        run_it = partial(optimise, arm, setting, known, meter, checkpoint=checkpoint, spent=evals)
        (best, trace[arm]), fallback = task(arm, arm, partial(_with_fallback, run_it, setting.encoder))
        deltas[arm], fell_back = best.delta, fell_back | ({arm} if fallback else set())
        steps = best.step if len(fit) == len(rows) else best.step[:1].expand(len(rows))  # of one that they share
        chosen[arm] = steps.cpu() + 1
    sanity = None
    if unit.start == 0 and run.sanity.pictures:  # its cost is reported apart
        sanity = checkpoint.once("sanity", lambda: check(setting, known, trace["eot"], bench.module))
        meter.read()

    saved = {arm: parts.perturbation.quantise(deltas[arm], images) for arm in arms[1:]}
    files = {"clean": images} | {
        arm: parts.perturbation.for_arm(arm).written(images, delta) for arm, delta in saved.items()
    }
    with bench.exhibits.writing(rows, files, saved) as exhibits:
        bench = replace(bench, exhibits=exhibits)
        scores, worst = scored(bench, arms, unit, task)
        shown = {arm: bench.exhibits.shown(arm, rows) for arm in arms} if bench.layers else {}
        drift = checkpoint.once("drift", lambda: drift_of(bench, parts, rows, shown)) if bench.layers else None
        budget = {arm: parts.perturbation.norm(exhibits.pictures(arm, rows) - images).cpu() for arm in arms}
        written = exhibits.digests()
    ordered = [line for arm in arms for line in trace.get(arm, [])]
    return BatchResult(
        tuple(rows),
        scores,
        worst,
        budget,
        {arm: delta.cpu().contiguous() for arm, delta in saved.items()},
        tuple(ordered),
        chosen,
        costs,
        sanity,
        drift,
        tuple(sorted(fell_back)),
        written,
    )


def scored(
    bench: Bench, arms: Sequence[str], unit: Unit, task: Task = lambda *each: each[-1]()
) -> tuple[dict[str, dict[str, Scores]], dict[str, Tensor]]:
    """The scores of a unit by bank and arm, and by arm its cosine in the worst view. An arm is judged as soon as its
    files are there."""
    rows = range(unit.start, unit.stop)
    numbers, shown = torch.tensor(list(rows)), dict[str, Shown]()
    own = bench.judge.own[numbers.to(bench.judge.own.device)]
    scores: dict[str, dict[str, Scores]] = {bank: {} for bank in bench.banks}
    for bank, views in bench.banks.items():
        for arm in arms:
            shown[arm] = shown[arm] if arm in shown else bench.exhibits.shown(arm, rows)
            score = partial(bench.judge, shown[arm], numbers, views, _title(arm, bank, unit.number))
            scores[bank][arm] = task(f"{arm} {bank}", "judging", score)
    worst = {
        arm: task(f"{arm} worst", "judging", partial(worst_cosine, bench, shown[arm], own, scores[SAME][arm]))
        for arm in arms
    }
    return scores, worst


def drift_of(bench: Bench, parts: Parts, rows: Sequence[int], shown: dict[str, Shown]) -> Drift:
    bank = bench.banks[SAME]
    some, others = bank._replace(u=bank.u[:VIEWS]), {arm: shown[arm] for arm in arms_of(bench.run, parts)[1:]}
    clean = bench.exhibits.pictures("clean", rows)
    return layer_drift(parts.encoder, clean, others, some, bench.layers, chunk=bench.chunk, world=bench.world)


def _with_fallback(attack: Callable[[], tuple[Best, list[Trace]]], encoder: Counted) -> tuple[Any, bool]:
    """The result of an attack, and whether the engine fell back to float32."""
    result = attack()
    return result, bool(engine_state(encoder).get("fell_back", False))


def setup(bench: Bench, parts: Parts, rows: Sequence[int], seed: int) -> tuple[Setting, Known]:
    """The setting in which the pictures `rows` with their `parts` (see `part_of`) are attacked, and their data."""
    run, judge = bench.run, bench.judge
    images = parts.queries.images.to(parts.device)
    own = judge.own[torch.tensor(list(rows), device=judge.own.device)]
    # of a gallery with embeddings from a file, which no objective reads (see `check_gallery`), the pictures' rows
    gallery = judge.gallery.parts[0] if isinstance(judge.gallery, Rows) else judge.gallery
    known = Known(images, own, gallery, parts.truth, parts.goal, parts.gallery.label_numbers)
    known = known.without(hidden(bench.parts.gallery, bench.parts.queries, bench.parts.truth))
    exact = bench.exact if bench.world.first else bench.exact.encoder  # every process computes it; count it once
    goal = aim(run.objective, known, exact, parts.transforms, run.seed)
    return Setting(run, parts, bench.world, bench.encoder, goal, bench.chunk, seed), known


def _title(arm: str, bank: str, number: int) -> str:
    return f"judging {arm}" + (f", {bank}" if bank != SAME else "") + (f", batch {number}" if number else "")


def refinable(run: Run, parts: Parts) -> int:
    """The number of gradient steps toward the worst view. 0 with a target: the worst view would be the one least like
    the target, which an empty view wins. 0 for an encoder compared by its bits, or that can only be asked: they have
    no gradient."""
    plain = parts.goal is None and signature_method(parts.encoder) is None and black_box(parts.encoder) is None
    return run.evaluate.refine if plain else 0


def worst_cosine(bench: Bench, shown: Shown, own: Tensor, scores: Scores) -> Tensor:
    """For each picture the cosine (n,) to its clean embedding in the view that resists the attack most."""
    if bench.parts.goal is not None:
        return resisting(scores)
    worst_views = uphill(
        judged(shown, own, bench.counted, Away()),
        bench.banks[SAME],
        scores.cosine.to(own.device),
        refine_steps=refinable(bench.run, bench.parts),
        keep=KEPT,
        chunk=bench.chunk,
        world=bench.world,
    )
    return worst_views.losses[:, 0].cpu()
