"""Sections that repeat an attack: without a stage of the views, and at smaller radii."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.encoders.engine import engine_reset, engine_restore, engine_state
from attacks.eot.bank import bank
from attacks.evaluation import ablation
from attacks.evaluation.clusters import Row, Sample, by_cluster, column_of, medians, totals
from attacks.evaluation.judge import score_cells
from attacks.experiment.arms import ArmState, optimise, options_of, problem_of
from attacks.experiment.bench import MAIN, Bench, Meter
from attacks.experiment.sections.section import Section, SectionResult, sample_of
from attacks.experiment.unit import attempt_of
from attacks.inference.bounded import Interval, median, rate
from attacks.objectives.retrieval import Retrieval
from attacks.schema.objective import LayersConfig
from attacks.solvers.radius import RadiusState, RadiusTrial, smallest_radius, trial_plan, views_of
from attacks.study.study import Study
from transforms import Compose
from transforms.draws import stream
from transforms.scene import Shown

#: Runs at one radius whose passes the search may take.
RUNS = 2
#: Radii at which the curve is computed, from 0 to the largest.
POINTS = 33
#: The largest relative rounding error of a norm that comes from the difference of two pictures in single precision.
ROUNDING = 1e-5


@dataclass(frozen=True)
class LeftOutSection(Section):
    """The run's own attack of so many `steps` without each of the `stages` of the views in turn."""

    steps: int
    stages: tuple[str, ...]

    key: ClassVar[str] = "left_out"
    attacks: ClassVar[bool] = True

    @classmethod
    def arguments(cls, study: Study) -> dict[str, Any]:
        return {"steps": study.views.steps, "stages": (*ablation.varying(study.transforms),)}

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:
        study, numbers = bench.study, count()
        judged_study = study.only(sample.rows.tolist())
        shared = study.perturbation.shared
        fit = (sample_of(bench, study.queries.attacked, self.pictures) if shared else sample).rows.tolist()
        silent = replace(bench, follow=None)

        def attack(transforms: Compose) -> Shown:
            checkpoint = bench.checkpoint.under(f"left_out.{next(numbers)}")
            fit_study = replace(study.only(fit), transforms=transforms, start=None)  # which was made for all stages
            attempt = attempt_of(silent, fit_study, fit, stream(study.seed, "left out"))
            (best, *_), cost = checkpoint.once(
                "eot", lambda: (optimise("eot", attempt, meter, checkpoint), meter.peek())
            )
            meter.begin(cost)
            delta = attempt.study.perturbation.quantise(best.delta, attempt.knowledge.images)
            return judged_study.perturbation.evaluated(judged_study.queries.images.to(study.device), delta)

        views = len(bench.banks[MAIN].u)
        rows = ablation.left_out(attack, study.transforms, sample, bench.judge, views=views, seed=study.seed)
        return SectionResult(rows)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        content = ablation.summary(rows)
        if content["stages"] != [*self.stages]:
            raise ValueError(f"its stages must be {', '.join(self.stages)}; got {', '.join(content['stages'])}")
        return content | {"steps": self.steps}


@dataclass(frozen=True)
class RadiiSection(Section):
    """The smallest radius of all pictures, up to `eps`: search from the files of the arm `eot`, write
    `pictures/radius/`, and judge these files on held-out views."""

    eps: float

    key: ClassVar[str] = "radii"
    facts: ClassVar[Mapping[str, Any]] = {"passes": {"search": int}}
    attacks: ClassVar[bool] = True
    unjudged: ClassVar[bool] = True

    @classmethod
    def of(cls, study: Study) -> "RadiiSection | None":
        return cls(len(study.queries), study.perturbation.eps) if study.attack.name == "radius" else None

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:
        study, rows = bench.study, sample.rows.tolist()
        state, images = _search(bench, rows, RUNS * _attack_passes(bench), meter)
        files = {"radius": study.perturbation.written(images, state.delta)}
        bench.exhibits.write(rows, files, {})
        pictures = bench.exhibits.pictures("radius", rows)
        scores = score_cells(bench.judge, pictures, sample.rows, bench.banks[MAIN])
        success, views = scores.success.double().mean(1).tolist(), scores.success.shape[1]
        norms = [norm if math.isfinite(norm) else None for norm in state.smallest.tolist()]
        columns = (sample.names, sample.clusters, norms, state.share.tolist(), success)
        names = ("picture", "cluster", "radius", "found", "success", "views", "largest")
        table = [dict(zip(names, (*row, views, self.eps), strict=True)) for row in zip(*columns, strict=True)]
        return SectionResult(table, {"passes": _passes(bench, state.passes)})

    def recorded_facts(self, bench: Bench, content: Mapping[str, Any]) -> dict[str, Any]:
        """Of the passes only those of the search are not computed again."""
        return {"passes": _passes(bench, content["passes"]["search"])}

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return radii_summary(rows, self.eps)


def _attack_passes(bench: Bench) -> int:
    """The views of each picture, forward and back, in the attack at the largest radius."""
    cost, passes = bench.costs["eot"], bench.encoder.passes_of_view
    return (cost.forward // passes.forward + cost.backward // passes.backward) // len(bench.study.queries)


def _passes(bench: Bench, search: int) -> dict[str, float]:
    """The passes of each picture: of the search, of the attack, and of both in runs of the attack."""
    attack = _attack_passes(bench)
    return {"search": search, "attack": attack, "runs": (search + attack) / max(1, attack)}


def _search(bench: Bench, rows: Sequence[int], passes: int, meter: Meter) -> tuple[RadiusState, Tensor]:
    """The state of the search at its end, and the clean pictures."""
    study, encoder = bench.study, bench.encoder
    attempt = attempt_of(bench, study, rows, study.seed)
    knowledge = attempt.knowledge
    problem, options = problem_of("eot", attempt), options_of("radius", attempt)
    is_retrieval = knowledge.goal is None and bench.judge.signature is None and study.acceptance is None
    if is_retrieval and not isinstance(study.objective, LayersConfig):
        # What breaks a picture is another that is nearer: no other objective finds the smallest radius.
        margin = Retrieval(knowledge.gallery, identity=knowledge.identity)
        problem = replace(problem, encoder=encoder, objective=margin, anchor=knowledge.truth)
    count = views_of(passes) if study.transforms.dims else 1
    views = bank(study.transforms, count, seed=study.seed, purpose="radius")
    views = views._replace(u=views.u.to(knowledge.images))
    numbers = knowledge.truth.new_tensor(rows)

    def success(delta: Tensor) -> Tensor:
        pictures = study.perturbation.evaluated(knowledge.images, delta)
        return score_cells(bench.judge, pictures, numbers, views).success.double().mean(1).to(delta.device)

    first = bench.exhibits.pictures("eot", rows) - knowledge.images
    trial = RadiusTrial(success, len(views.u))
    state: RadiusState | None = None
    bench.progress.part("radii", len(rows) * passes, 1 + trial_plan(options, trial, passes)[1])
    with bench.checkpoint.under("radii").task("search") as task:
        engine_reset(encoder)
        if task.state is not None:
            state, engine, _, _, offset = task.state
            engine_restore(encoder, engine)
            meter.begin(offset)
            bench.progress.skip(state.trials)
        for latest in smallest_radius(problem, options, trial, first, passes=passes, state=state):
            state = latest
            bench.progress.step(broken=int(state.broken.sum()))
            task.update(partial(ArmState, state, engine_state(encoder), None, (), meter.peek()))
    assert state is not None  # the first trial is always made
    return state, knowledge.images


def radii_summary(rows: Sequence[Row], eps: float) -> dict[str, Any]:
    """The content of metrics.json, of a row for each picture: its `radius`, the norm of the change in the file that
    half of the views of the search's bank take for something else (empty: more than `eps`), and the share of the
    `views` of the bank of the other tables with `success`. A median of None is more than `eps`."""
    clusters = [str(row["cluster"]) for row in rows]
    radius = torch.tensor([math.inf if row["radius"] in (None, "") else float(str(row["radius"])) for row in rows])
    success, views = column_of(rows, "success"), column_of(rows, "views")
    held_out = rate(by_cluster(success, clusters), totals(views, clusters))
    middle = median(medians(radius.double(), clusters))._asdict()
    return {
        "pictures": len(rows),
        "clusters": len(set(clusters)),
        "eps": eps,
        "median": {key: None if end == math.inf else end for key, end in middle.items()},
        "beyond": int((~radius.isfinite()).sum()),
        "held_out": held_out._asdict(),
        "curve": [{"eps": limit, "success": share._asdict()} for limit, share in curve(radius, clusters, eps)],
    }


def curve(radius: Tensor, clusters: Sequence[str], largest: float) -> list[tuple[float, Interval]]:
    """The share of broken pictures at radii up to `largest`, over clusters, with its interval. It never falls."""
    pictures = totals(torch.ones(len(radius)), clusters)
    points = [largest * i / (POINTS - 1) for i in range(POINTS)]
    near = [radius <= eps * (1 + ROUNDING) for eps in points]
    return [(eps, rate(by_cluster(hit.double(), clusters), pictures)) for eps, hit in zip(points, near, strict=True)]
