"""The optional parts of an evaluation, computed from the saved files: the smallest radii, response maps over the
space of views, the ablation of each stage, deployment through file formats, the detection of pictures that a resizer
shows otherwise than people see them, explanations of the encoder, and the probability of rare failures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from attacks.data.gallery import spread
from attacks.encoders.defended import view_defence
from attacks.eot.bank import Bank
from attacks.eot.batching import memory_told
from attacks.evaluation.ablation import left_out
from attacks.evaluation.clusters import Sample
from attacks.evaluation.deployment import Deployment, deployed_size, deployment
from attacks.evaluation.detection import Detection, cosines
from attacks.evaluation.explain.explanation import Explanations, explain
from attacks.evaluation.rare.failure import Failures
from attacks.evaluation.response import Response, SlicePlan, response
from attacks.experiment.arms import optimise
from attacks.experiment.batch import SAME, Bench, arms_of, part_of, setup
from attacks.experiment.configured_slices import CELLS, configured_parts, configured_slices, wide_of
from attacks.experiment.cost import Meter, Spent
from attacks.experiment.failure import failures_of
from attacks.experiment.outcome import Outcome
from attacks.experiment.radius import smallest
from attacks.experiment.units import FAULTS, keep_fault
from attacks.report.view_sheet import draw_failures
from transforms import Compose
from transforms.draws import stream
from transforms.scene import Shown

#: Views per cell of a map, and cells of a curve.
VIEWS, CURVE_CELLS = 4, 9
#: Pictures that are resized at once.
BLOCK = 16


class Section(Protocol):
    """One part."""

    def to_dict(self) -> dict[str, Any]:
        """For metrics.json."""

    def rows(self) -> list[dict[str, object]]:
        """The rows that its tables are computed from."""


@dataclass(frozen=True, eq=False)
class Sections:
    """The parts by their key in metrics.json (None if not configured or failed), the cost of each, and the reasons of
    those that failed."""

    parts: dict[str, Section | None]
    costs: dict[str, Spent] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def cost(self) -> Spent:
        """The cost of all parts."""
        return sum(self.costs.values(), Spent())

    def to_dict(self) -> dict[str, Any]:
        """For metrics.json."""
        return {name: None if part is None else part.to_dict() for name, part in self.parts.items()}

    def rows(self) -> dict[str, list[dict[str, object]]]:
        """The rows by the name of their file."""
        return {name: part.rows() for name, part in self.parts.items() if part is not None}

    def draw(self, out: Path) -> None:
        """Write explanations.png, deployment.png and failure.png, if there are any."""
        part, deployed, failures = (self.parts[name] for name in ("explanations", "deployment", "failure"))
        if isinstance(part, Explanations):
            from attacks.report.explanations import draw_explanations  # here: matplotlib takes a while to import

            draw_explanations(out / "explanations.png", part)
        if isinstance(deployed, Deployment) and deployed.example is not None:
            from attacks.report.deployment_sheet import draw_deployment  # here: matplotlib takes a while to import

            draw_deployment(out / "deployment.png", deployed.example)
        if isinstance(failures, Failures):
            draw_failures(out / "failure.png", failures)


def sections(outcome: Outcome) -> Sections:
    """Compute all configured parts; every process of the world takes part."""
    bench = outcome.bench
    parts: dict[str, Section | None] = {}
    costs: dict[str, Spent] = {}
    failed: dict[str, str] = {}
    meter = bench.meter()
    makes = {"radii": _radii, "response": _response, "left_out": _left_out}
    makes |= {"deployment": _deployment, "detection": _detection}
    makes |= {"explanations": _explanations, "failure": _failure}
    for name, configured in configured_parts(bench.run, bench.parts.transforms).items():
        parts[name] = None
        if not configured:
            continue
        try:
            with memory_told():
                parts[name], costs[name] = bench.checkpoint.once(name, partial(_priced, makes[name], outcome, meter))
        except (*FAULTS, ValueError) as error:  # the tables of the arms do not need it
            if bench.world.size > 1:  # each process may have another error
                raise
            keep_fault(bench, error, name)
            failed[name] = str(error)
        meter.read()
    return Sections(parts, costs, failed)


def _priced(make: Callable[[Outcome, Meter], Section], outcome: Outcome, meter: Meter) -> tuple[Section, Spent]:
    part = make(outcome, meter)
    if isinstance(part, Explanations):  # its hooks see the encoder itself, which no meter counts
        return part, Spent(part.forward, part.backward, part.seconds)
    return part, meter.read()


def sample_of(bench: Bench, count: int) -> Sample:
    """`count` judged pictures spread evenly over their clusters, or all."""
    queries = bench.parts.queries
    rows = _spread(bench, queries.judged, count)
    names, clusters = (tuple(column[row] for row in rows) for column in (queries.names, queries.clusters))
    return Sample(torch.tensor(rows), names, clusters)


def _spread(bench: Bench, rows: Sequence[int], count: int) -> list[int]:
    clusters = [bench.parts.queries.clusters[row] for row in rows]
    return [rows[i] for i in spread(clusters, min(count, len(rows)))]


def _pictures(bench: Bench, sample: Sample) -> dict[str, Tensor]:
    return {arm: bench.exhibits.pictures(arm, sample.rows.tolist()) for arm in arms_of(bench.run, bench.parts)}


def _radii(outcome: Outcome, meter: Meter) -> Section:
    return smallest(outcome.bench, outcome.costs["eot"], meter)


def _response(outcome: Outcome, _: Meter) -> Section:
    return response_of(outcome.bench, sample_of(outcome.bench, outcome.bench.run.evaluate.map_pictures))


def response_of(bench: Bench, sample: Sample) -> Response:
    """The maps and curves over some pictures. A picture's rows do not depend on the others."""
    shown = {arm: bench.exhibits.shown(arm, sample.rows.tolist()) for arm in arms_of(bench.run, bench.parts)}
    return response(shown, sample, bench.judge, slices_of(bench), seed=bench.run.seed, views=VIEWS)


def slices_of(bench: Bench) -> SlicePlan:
    """The configured maps and curves as they are scored."""
    transforms = bench.parts.transforms
    wide = wide_of(transforms, bench.run.evaluate.wide)
    return SlicePlan(*configured_slices(bench.run, transforms), transforms, wide, CELLS, CURVE_CELLS)


def _left_out(outcome: Outcome, meter: Meter) -> Section:
    """Repeat the run's own attack without each stage."""
    bench = outcome.bench
    sample = sample_of(bench, bench.run.evaluate.left_out)
    parts = part_of(bench.parts, sample.rows.tolist())
    rows = _spread(bench, bench.parts.queries.attacked, bench.run.evaluate.left_out)
    seed = stream(bench.run.seed, "left out")
    numbers = count()

    def attack(transforms: Compose) -> Shown:
        checkpoint = bench.checkpoint.under(f"left_out.{next(numbers)}")
        fit = replace(part_of(bench.parts, rows), transforms=transforms)
        setting, known = setup(bench, fit, rows, seed)
        (best, _), spent = checkpoint.once(
            "eot", lambda: (optimise("eot", setting, known, meter, checkpoint), meter.peek())
        )
        meter.begin(spent)
        saved = fit.perturbation.quantise(best.delta, known.images)
        return parts.perturbation.evaluated(parts.queries.images.to(parts.device), saved)

    views = len(bench.banks[SAME].u)
    return left_out(
        attack,
        parts.transforms,
        sample,
        bench.judge,
        views=views,
        steps=bench.parts.views.steps,
        seed=bench.run.seed,
    )


def _deployment(outcome: Outcome, _: Meter) -> Section:
    return deployment_of(outcome.bench, sample_of(outcome.bench, outcome.bench.run.evaluate.deploy))


def deployment_of(bench: Bench, sample: Sample) -> Deployment:
    """File formats and resizers on some pictures. A patch is deployed within the picture that contains it."""
    height, width = bench.parts.queries.images.shape[2:]
    size, ratios = deployed_size(bench.parts.encoder, (height, width)), bench.run.evaluate.ratios
    defence, seed = view_defence(bench.parts.transforms), bench.run.seed
    return deployment(_pictures(bench, sample), sample, bench.judge, size, ratios, defence, seed)


def _detection(outcome: Outcome, _: Meter) -> Section:
    bench = outcome.bench
    pipeline, sample = bench.parts.pipeline, sample_of(bench, len(bench.parts.queries))
    assert pipeline is not None
    by_arm = cosines_of(bench, sample.rows.tolist())
    return Detection(pipeline.name, pipeline.size, by_arm, sample.names, sample.clusters)


def cosines_of(bench: Bench, rows: Sequence[int]) -> dict[str, Tensor]:
    """The cosine (n,) by arm of some pictures behind the configured pipeline and behind an antialiased resize."""
    pipeline, judge, world = bench.parts.pipeline, bench.judge, bench.world
    assert pipeline is not None
    encoder = bench.counted if world.first else bench.counted.encoder  # every process computes it; count it once
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]

    def encode(pictures: Tensor) -> Tensor:
        features = Bank(Compose([]), pictures.new_zeros(1, 0)).features(pictures, encoder, bench.chunk)[:, 0]
        return features if judge.signature is None else judge.signature(features)

    return {
        arm: torch.cat([cosines(bench.exhibits.pictures(arm, block), pipeline, encode) for block in blocks])
        for arm in arms_of(bench.run, bench.parts)
    }


def _failure(outcome: Outcome, _: Meter) -> Section:
    return failures_of(outcome.bench, sample_of(outcome.bench, outcome.bench.run.evaluate.failure))


def _explanations(outcome: Outcome, _: Meter) -> Section:
    return explanations_of(outcome.bench, sample_of(outcome.bench, outcome.bench.run.evaluate.explain))


def explanations_of(bench: Bench, sample: Sample) -> Explanations:
    """Explanations of the encoder on some saved pictures."""
    judge, pictures = bench.judge, _pictures(bench, sample)
    anchors: Tensor = judge.own if judge.goal is None else judge.gallery[judge.goal.to(judge.gallery.device)]
    clean = pictures.pop("clean")
    return explain(
        bench.parts.encoder,
        clean,
        pictures,
        anchors[sample.rows.to(anchors.device)],
        bench.banks[SAME],
        sample=sample,
        chunk=bench.chunk,
    )
