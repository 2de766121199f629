"""A unit of an experiment: attack its pictures, write the files, and score the files, those of all arms alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine import engine_reset
from attacks.encoders.panel import ScoredModule
from attacks.eot.bank import judged
from attacks.evaluation.drift import VIEWS, Drift, layer_drift
from attacks.evaluation.judge import concatenate, resisting
from attacks.evaluation.retrieval import Rows
from attacks.evaluation.sanity.battery import examine
from attacks.evaluation.sanity.check import Sanity
from attacks.evaluation.scores import Scores
from attacks.experiment.arms import Attempt, first_of, optimise, options_of, problem_of
from attacks.experiment.bench import MAIN, Bench, Cost
from attacks.objectives.aim import Knowledge
from attacks.objectives.embedding import Away
from attacks.runtime.values import stored
from attacks.solvers.loop import Trace
from attacks.solvers.worst import uphill
from attacks.study.data import hidden_rows
from attacks.study.objective import aim_of, shown_sign
from attacks.study.study import BARE, Study
from transforms.draws import stream
from transforms.scene import Shown

#: A task of a unit: its name, what its cost is added to, and how its result is made.
Task = Callable[[str, str, Callable[[], Any]], Any]
#: Worst views of each picture from which the gradient search for a worse one starts.
STARTS = 4
#: Gradients of a sanity check beside those of a short run of it; the time of a judged view beside a gradient's.
CHECKS, JUDGED = 13, 1 / 3


@dataclass(frozen=True)
class Unit:
    """Pictures [start, stop) that are attacked together: batch `number`, or one of its pictures, again `alone`."""

    start: int
    stop: int
    number: int
    alone: bool = False

    @property
    def name(self) -> str:
        """The stem of its checkpoint files."""
        return f"{self.start:06d}-{self.stop:06d}"

    def seed(self, seed: int) -> int:
        """The seed of its noise, starts and views, from that of the run."""
        if self.alone:
            return stream(seed, "alone", self.start)
        return stream(seed, "batch", self.number) if self.number else seed


def worst_gradients(bench: Bench) -> int:
    """The gradients of a picture in an arm's search for the most resistant view."""
    return STARTS * (bench.refine_steps + 1) if bench.refine_steps else 0


def share_of(bench: Bench, unit: Unit) -> float:
    """The work of a unit in gradients, with the sanity checks of the first, but for attacks that end early."""
    study, sanity, arms = bench.study, bench.study.sanity, len(bench.study.arms)
    judged = JUDGED * sum(len(bank.u) for bank in bench.banks.values())
    work = (arms - 2) * study.views.gradients + arms * (worst_gradients(bench) + judged)
    checks = CHECKS * sanity.pictures * sanity.steps * sanity.views
    return (unit.stop - unit.start) * work + checks * (unit.start == 0)


@stored("batch_result")
@dataclass(frozen=True)
class UnitResult:
    """Of the pictures `rows`: the scores by bank and arm, the cosine in the most resistant view, the norm of the
    change, the deltas as saved, and the trace. `chosen` by optimised arm: after how many steps (N,) each picture's
    perturbation was chosen (of a suite, within its member). `sanity` is of the first unit. `fell_back` continued in
    float32. `files`: the SHA-256 of each picture that was written, by its path in the run directory."""

    rows: tuple[int, ...]
    scores: dict[str, dict[str, Scores]]
    worst: dict[str, Tensor]
    budget: dict[str, Tensor]
    saved: dict[str, Tensor]
    trace: tuple[Trace, ...]
    chosen: dict[str, Tensor]
    costs: dict[str, Cost] = field(default_factory=dict)
    sanity: Sanity | None = None
    drift: Drift | None = None
    fell_back: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


def joined_units(results: Sequence[UnitResult], shared: bool) -> UnitResult:
    """The results of some units as one, without `files`; `shared`: a perturbation that all pictures have."""
    first, costs = results[0], dict[str, Cost]()
    for result in results:
        for name, cost in result.costs.items():
            costs[name] = costs.get(name, Cost()) + cost
    drift = None
    if first.drift is not None:
        parts = [result.drift for result in results if result.drift is not None]
        cosine = {arm: torch.cat([part.cosine[arm] for part in parts], dim=1) for arm in first.drift.cosine}
        drift = Drift(first.drift.layers, cosine, sum(p.forward for p in parts), sum(p.seconds for p in parts))

    def column(name: str) -> dict[str, Tensor]:
        return {arm: _joined([getattr(result, name)[arm] for result in results]) for arm in getattr(first, name)}

    scores = {
        bank: {arm: concatenate([result.scores[bank][arm] for result in results]) for arm in arms}
        for bank, arms in first.scores.items()
    }
    return UnitResult(
        rows=tuple(row for result in results for row in result.rows),
        scores=scores,
        worst=column("worst"),
        budget=column("budget"),
        saved=first.saved if shared else column("saved"),
        trace=tuple(line for result in results for line in result.trace),
        chosen=column("chosen"),
        costs=costs,
        sanity=next((result.sanity for result in results if result.sanity is not None), None),
        drift=drift,
        fell_back=tuple(sorted({arm for result in results for arm in result.fell_back})),
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Values by picture; those of several shapes one after the other, flat."""
    is_flat = len({part.shape[1:] for part in parts}) > 1
    return torch.cat([part.flatten() for part in parts] if is_flat else [*parts])


@stored("failure")
class Failure(NamedTuple):
    """A picture that is given up."""

    picture: int
    name: str
    reason: str


def attack_unit(bench: Bench, unit: Unit) -> UnitResult:
    """Run the arms on the pictures of a unit, write the files, and score them, reusing what the checkpoint has."""
    rows, meter, seed = range(unit.start, unit.stop), bench.meter(), unit.seed(bench.study.seed)
    costs, bench = dict[str, Cost](), bench.under(unit.name)
    checkpoint, study = bench.checkpoint, bench.study.only(rows)

    def task(name: str, part: str, make: Callable[[], Any]) -> Any:
        result, cost = checkpoint.once(name, lambda: (make(), meter.read()))
        costs[part] = costs.get(part, Cost()) + cost
        meter.read()
        return result

    fit = [row for row in bench.study.queries.attacked if row in rows]
    bare = [] if bench.bare is None else [(BARE, replace(bench.bare, progress=bench.progress))]
    benches = dict([*bare, ("eot", bench)])
    make = partial(attempt_of, rows=fit, seed=seed, batch=unit.number)
    attempts = {arm: make(part, part.study.fit or part.study.only(fit)) for arm, part in benches.items()}
    attempt = attempts["eot"]
    images, arms, perturbation = study.queries.images.to(study.device), study.arms, study.tied().perturbation
    count = len(attempt.study.queries)
    costs["anchors"] = meter.read()

    deltas = {"noise": perturbation.noise(images, torch.Generator().manual_seed(stream(seed, "noise")))}
    trace, choices, fell_back = dict[str, list[Trace]](), dict[str, Tensor](), list[str]()
    offset = 0 if study.start is None else study.threat["start_from"]["gradients"]
    size = min(study.attack.pictures or count, count)
    for arm in dict.fromkeys([*attempts, *arms[2:]]):
        evals, setup = 0 if arm in attempts else offset + trace["eot"][-1].evals // size, attempts.get(arm, attempt)
        if arm == "eot" and (BARE in deltas or study.start is not None):
            setup = replace(setup, first=task("first", arm, partial(first_of, attempt, meter, deltas.get(BARE))))
        run_arm = partial(optimise, arm, setup, meter, checkpoint, evals)
        best, trace[arm], fallback = task(arm, arm, run_arm)
        deltas[arm], fell_back = best.delta, fell_back + [arm] * fallback
        # of one that they share, that of all
        steps = best.step if len(best.step) == len(rows) else best.step[:1].expand(len(rows))
        choices[arm] = steps.cpu() + 1
    sanity = None
    if unit.start == 0 and study.sanity.pictures:  # its cost is reported apart
        bench.progress.part("sanity checks", share_of(bench, Unit(0, 0, 0)))
        sanity = checkpoint.once("sanity", lambda: check_pictures(attempt, trace["eot"], deltas))
        meter.read()

    saved_deltas = {arm: perturbation.quantise(deltas[arm], images) for arm in arms[1:]}
    files = {"clean": images}
    files |= {arm: perturbation.for_arm(arm).written(images, delta) for arm, delta in saved_deltas.items()}
    exhibits = bench.exhibits
    digests = exhibits.write(rows, files, saved_deltas)
    scores, worst = score_arms(bench, arms, unit, task)
    drift = checkpoint.once("drift", lambda: drift_of(bench, rows)) if bench.layers else None
    budget = {arm: study.perturbation.norm(exhibits.pictures(arm, rows) - images).cpu() for arm in arms}
    # rounded for each picture, it is no longer one for all
    source = deltas if study.perturbation.shared else saved_deltas
    saved = {arm: source[arm].cpu().contiguous() for arm in saved_deltas}
    lines, fallbacks = tuple(line for arm in arms for line in trace.get(arm, [])), tuple(sorted(fell_back))
    parts = (scores, worst, budget, saved, lines, choices, costs, sanity, drift, fallbacks, digests)
    return UnitResult(tuple(rows), *parts)


def score_arms(
    bench: Bench, arms: Sequence[str], unit: Unit, task: Task
) -> tuple[dict[str, dict[str, Scores]], dict[str, Tensor]]:
    """The scores of a unit by bank and arm, and by arm its cosine in the most resistant view."""
    rows = range(unit.start, unit.stop)
    numbers, pictures = torch.tensor(list(rows)), dict[str, Shown]()
    embeddings = bench.judge.own[numbers.to(bench.judge.own.device)]
    scores: dict[str, dict[str, Scores]] = {bank: {} for bank in bench.banks}
    for bank, arm in product(bench.banks, arms):
        pictures[arm] = pictures[arm] if arm in pictures else bench.exhibits.displayed(arm, rows)
        bench.progress.part(f"judging {arm}", JUDGED * len(rows) * len(bench.banks[bank].u), len(rows))
        score = partial(bench.judge, pictures[arm], numbers, bench.banks[bank], bench.progress.step)
        scores[bank][arm] = task(f"{arm} {bank}", "judging", score)
    worst = {}
    for arm in arms:
        bench.progress.part(f"worst view, {arm}", worst_gradients(bench) * len(rows))
        search = partial(worst_cosine, bench, pictures[arm], embeddings, scores[MAIN][arm])
        worst[arm] = task(f"{arm} worst", "judging", search)
    return scores, worst


def drift_of(bench: Bench, rows: Sequence[int]) -> Drift:
    """The drift of the configured layers on the pictures `rows`, from their files."""
    bank, exhibits, encoder = bench.banks[MAIN], bench.exhibits, bench.study.encoder
    bank = bank._replace(u=bank.u[:VIEWS])
    pictures = {arm: exhibits.displayed(arm, rows) for arm in bench.study.arms[1:]}
    clean = exhibits.pictures("clean", rows)
    return layer_drift(encoder, clean, pictures, bank, bench.layers, chunk=bench.chunk, world=bench.world)


def attempt_of(bench: Bench, study: Study, rows: Sequence[int], seed: int, batch: int = 0) -> Attempt:
    """The attempt on the pictures `rows`, with their `study`."""
    judge, study = bench.judge, study.tied()
    images = study.queries.images.to(study.device)
    # of a gallery with embeddings from a file, which no objective reads (see `check_gallery`), the pictures' rows
    gallery = judge.gallery.parts[0] if isinstance(judge.gallery, Rows) else judge.gallery
    is_part = study.queries.store is None
    embeddings = judge.own[torch.tensor(list(rows), device=judge.own.device)] if is_part else gallery[study.truth]
    knowledge = Knowledge(images, embeddings, gallery, *study.right)
    knowledge = knowledge.drop(hidden_rows(bench.study.gallery, bench.study.queries, bench.study.truth))
    exact = bench.exact if bench.world.first else bench.exact.encoder  # every process computes it; count it once
    goal = aim_of(study.objective, knowledge, exact, study.transforms, study.seed)
    limits = judge.limits if any(study.attack.prices) else None
    limits = None if limits is None else limits[list(rows)].to(images)
    return Attempt(bench, study, knowledge, goal, seed, batch, limits=limits)


def worst_cosine(bench: Bench, pictures: Shown, embeddings: Tensor, scores: Scores) -> Tensor:
    """For each picture the cosine (n,) to its clean embedding in the view that resists the attacker most."""
    if bench.study.goal is not None:
        return resisting(scores)
    problem, cosine = judged(pictures, embeddings, bench.counter, Away()), scores.cosine.to(embeddings.device)
    options: Any = {"refine_steps": bench.refine_steps, "keep": STARTS, "chunk": bench.chunk, "world": bench.world}
    return uphill(problem, bench.banks[MAIN], cosine, **options).losses[:, 0].cpu()


def check_pictures(attempt: Attempt, trace: list[Trace], deltas: Mapping[str, Tensor]) -> Sanity:
    """The configured sanity checks of the run's own attack, on its first pictures, with the results of its arms."""
    study, bench, sanity = attempt.study, attempt.bench, attempt.study.sanity
    engine_reset(bench.encoder)
    problem = replace(problem_of("eot", attempt, bench.encoder.encoder), minibatches=None)
    rows = torch.arange(min(sanity.pictures, len(problem)), device=problem.images.device)
    sign, first = shown_sign(study.objective), [line for line in trace if line.attack == trace[0].attack]
    held_out = [line.held_out for line in first[: study.views.steps]]  # of the first restart
    options = replace(options_of("sanity", attempt), steps=sanity.steps)
    options = replace(options, eot=replace(options.eot, pictures=None))
    if study.views.adaptive is not None:  # short runs need views enough to show the noise
        options = replace(options, eot=replace(options.eot, views=sanity.views))
    part = slice(None) if problem.shared else rows
    return examine(
        problem.take(rows),
        options,
        views=max(sanity.views, options.eot.views) if study.attack.sampled else sanity.views,
        planned=study.views.steps,
        trace=[None if loss is None else sign * loss for loss in held_out],
        module=bench.module if attempt.limits is None else ScoredModule(bench.module),
        results=(deltas["eot"][part], deltas[BARE][part]) if BARE in deltas else None,
    )
