"""Sections that judge the files of a run: no attack is repeated."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.encoders.defended import view_defence
from attacks.eot.bank import Bank
from attacks.evaluation import deployment, detection, drift, response
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.explanation import explain, explanation_summary
from attacks.evaluation.rare.failure import ARMS, Arm, PictureFailure, failure_summary, margin_score
from attacks.evaluation.rare.splitting import RareFigures, rare
from attacks.evaluation.response import SlicePlan, axis
from attacks.experiment.bench import MAIN, Bench, Meter
from attacks.experiment.sections.section import Section, SectionResult, drift_result, pictures_of
from attacks.experiment.unit import drift_of
from attacks.study.study import Study
from transforms import Compose
from transforms.doors import unchecked
from transforms.draws import stream
from transforms.wrappers import widened

#: Pictures that are resized at once.
BLOCK = 16
#: Cells along the sides of a map and along a curve, and views of a cell.
CELLS, CURVE_CELLS, VIEWS = 7, 9, 4
#: The coordinates of maps and curves for `auto`: the first of these that vary, then any other.
TELLING = ("affine angle", "affine scale", "yaw", "distance", "angle", "scale", "shift right", "quality")


@dataclass(frozen=True)
class DeploymentSection(Section):
    """File formats, and resizers to the `size` (height, width) from its `ratios`; a patch lies in its picture."""

    size: tuple[int, int]
    ratios: Sequence[float]

    key: ClassVar[str] = "deployment"
    count_key: ClassVar[str] = "deploy"
    figure: ClassVar[str | None] = "deployment.png"
    drawer: ClassVar[str] = "attacks.report.panels.draw_deployment"
    facts: ClassVar[Mapping[str, Any]] = {"missing": [str]}

    @classmethod
    def arguments(cls, study: Study) -> dict[str, Any]:
        height, width = study.queries.images.shape[2:]
        size = deployment.deployed_size(study.encoder, (height, width))
        return {"size": size, "ratios": tuple(study.evaluate.ratios)}

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        study, pictures = bench.study, pictures_of(bench, sample)
        defence = view_defence(study.transforms)
        parts = deployment.deployment(pictures, sample, bench.judge, self.size, self.ratios, defence, study.seed)
        rows, missing, example = parts
        return SectionResult(rows, {"missing": list(missing)}, example)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return deployment.deployment_summary(rows) | {"size": list(self.size)}


@dataclass(frozen=True)
class DetectionSection(Section):
    """Pictures that the configured `pipeline` shows otherwise than people see them: all judged ones."""

    pipeline: str

    key: ClassVar[str] = "detection"
    facts: ClassVar[Mapping[str, Any]] = {"size": [int]}
    derived: ClassVar[tuple[str, ...]] = ("threshold", "flagged")

    @classmethod
    def of(cls, study: Study) -> "DetectionSection | None":
        pipeline = study.evaluate.pipeline
        return None if pipeline is None else cls(len(study.queries), pipeline)

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        pipeline, judge, rows = bench.study.pipeline, bench.judge, sample.rows.tolist()
        assert pipeline is not None
        encoder = bench.counter if bench.world.first else bench.counter.encoder  # every process computes it

        def encode(pictures: Tensor) -> Tensor:
            features = Bank(Compose([]), pictures.new_zeros(1, 0)).features(pictures, encoder, bench.chunk)[:, 0]
            return features if judge.signature is None else judge.signature(features)

        cosine: dict[str, list[Tensor]] = {arm: [] for arm in bench.study.arms}
        for arm, start in itertools.product(cosine, range(0, len(rows), BLOCK)):
            pictures = bench.exhibits.pictures(arm, rows[start : start + BLOCK])
            cosine[arm].append(detection.cosines(pictures, pipeline, encode))
        table = detection.flagged_rows({arm: torch.cat(parts) for arm, parts in cosine.items()}, sample)
        return SectionResult(table, {"size": list(pipeline.size)})

    def recorded_facts(self, bench: Bench, content: Mapping[str, Any]) -> dict[str, Any]:
        """The size is as recorded where the pipeline was a function that is not here."""
        pipeline = bench.study.pipeline
        return {"size": content["size"] if pipeline is None else list(pipeline.size)}

    def derived_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return detection.derived_rows(rows)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return detection.detection_summary(rows) | {"pipeline": self.pipeline}


@dataclass(frozen=True)
class DriftSection(Section):
    """Where in the network the embedding drifts: rows of all pictures, made with the units of the run, and figures of
    the `judged` ones, by name; `views` of a picture."""

    judged: frozenset[str]
    views: int

    key: ClassVar[str] = "drift"
    facts: ClassVar[Mapping[str, Any]] = {"cost": {"forward": int, "seconds": int | float}}
    unjudged: ClassVar[bool] = True

    @classmethod
    def of(cls, study: Study) -> "DriftSection | None":
        queries, config = study.queries, study.evaluate
        names = frozenset(queries.names[row] for row in queries.judged)
        return cls(len(queries), names, min(drift.VIEWS, config.views)) if config.layers else None

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        return drift_result(drift_of(bench, sample.rows.tolist()), sample)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"views": self.views, **drift.drift_summary([row for row in rows if row["picture"] in self.judged])}


@dataclass(frozen=True)
class ExplanationsSection(Section):
    """Maps of what the encoder looks at, before and after the attack."""

    key: ClassVar[str] = "explanations"
    count_key: ClassVar[str] = "explain"
    figure: ClassVar[str | None] = "explanations.png"
    drawer: ClassVar[str] = "attacks.report.panels.draw_explanations"
    facts: ClassVar[Mapping[str, Any]] = {
        "layer": (str, None),
        "missing": [str],
        "cost": {"forward": int, "backward": int, "seconds": int | float},
    }
    joint: ClassVar[bool] = True

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        judge, pictures = bench.judge, pictures_of(bench, sample)
        anchors: Tensor = judge.own if judge.goal is None else judge.gallery[judge.goal.to(judge.gallery.device)]
        anchors = anchors[sample.rows.to(anchors.device)]
        clean = pictures.pop("clean")
        result = explain(bench.study.encoder, clean, pictures, anchors, bench.banks[MAIN], chunk=bench.chunk)
        cost = {"forward": result.forward, "backward": result.backward, "seconds": result.seconds}
        facts = {"layer": result.layer, "missing": list(result.missing), "cost": cost}
        return SectionResult(result.rows(sample), facts, result)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return explanation_summary(rows)


@dataclass(frozen=True)
class FailureSection(Section):
    """The probability of rare failures in both arms, from a search with so many `particles` in each picture alone."""

    particles: int

    key: ClassVar[str] = "failure"
    figure: ClassVar[str | None] = "failure.png"
    drawer: ClassVar[str] = "attacks.report.sheets.draw_failures"

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        numbers, seed = sample.rows.tolist(), bench.study.seed
        results = [failure_of(bench, row, arm, self.particles, seed) for arm in ARMS for row in numbers]
        return SectionResult([failure.row() for failure in results], {}, results)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return failure_summary(rows) | {"particles": self.particles}


@torch.no_grad()
def failure_of(bench: Bench, row: int, arm: Arm, particles: int, seed: int) -> PictureFailure:
    """The failure probability of the picture with that number."""
    queries, bank = bench.study.queries, bench.banks[MAIN]
    views, pictures = bank.transforms, bench.exhibits.displayed(arm, [row])
    name, cluster = queries.names[row], queries.clusters[row]
    score = margin_score(bench.judge, pictures, row, views, arm)
    estimate = rare(score, views.dims, particles, stream(seed, "failure", arm, name))
    point = torch.from_numpy(np.ascontiguousarray(estimate.worst[:1])).to(bank.u)
    values = dict(zip(views.names, views.values(point)[0].tolist(), strict=True))
    view = unchecked(views)(pictures, point)[0].cpu()
    figures: dict[str, Any] = {field.name: getattr(estimate, field.name) for field in fields(RareFigures)}
    figures |= {"picture": name, "cluster": cluster, "arm": arm, "views": estimate.passes, "values": values}
    return PictureFailure(**figures, view=view)


@dataclass(frozen=True)
class ResponseSection(Section):
    """Maps and curves: success over coordinates of the views."""

    plan: SlicePlan

    key: ClassVar[str] = "response"

    @classmethod
    def of(cls, study: Study) -> "ResponseSection | None":
        plan = plan_of(study)
        if plan is None:
            return None
        response.slice_axes(plan)  # a name that is none is refused before anything is attacked
        return cls(study.evaluate.map_pictures, plan)

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        pictures = {arm: bench.exhibits.displayed(arm, sample.rows.tolist()) for arm in bench.study.arms}
        seed = bench.study.seed
        return SectionResult(response.response(pictures, sample, bench.judge, self.plan, seed=seed, views=VIEWS))

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return response.response_summary(rows, self.plan)


def plan_of(study: Study) -> SlicePlan | None:
    """The configured maps and curves, each by the names of its coordinates; None without any. `auto` stands for up to
    two coordinates that vary, so that a preset suits any views."""
    config, transforms = study.evaluate, study.transforms
    wide = widened(transforms, config.wide) if config.wide > 1 else transforms
    names = _telling(transforms, wide) if "auto" in (*config.maps, *config.curves) else []
    grids, lines = [names] if len(names) > 1 else [], names
    maps = [pair for entry in config.maps for pair in (grids if entry == "auto" else [entry])]
    curves = [name for entry in config.curves for name in (lines if entry == "auto" else [entry])]
    return SlicePlan(maps, curves, transforms, wide, CELLS, CURVE_CELLS) if maps or curves else None


def _telling(transforms: Compose, wide: Compose) -> list[str]:
    """Up to two coordinates that vary. Those of a random choice of stages come last."""
    names: list[str] = []
    for pattern in (*TELLING, *sorted(wide.names, key=lambda name: name.startswith(("oneof", "sometimes")))):
        try:
            name = axis(pattern, transforms, wide, CELLS, "auto").name
        except ValueError:  # none, several, a seed, or one that stands still
            continue
        if name not in names:
            names.append(name)
    return names[:2]
