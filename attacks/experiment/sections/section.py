"""What a section is, rows from the files of a run, figures from the rows and a drawing; and the sections of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attacks.data.gallery import evenly
from attacks.data.split import FIT, JUDGE
from attacks.eot.batching import memory_told
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.drift import Drift
from attacks.experiment.bench import Bench, Cost, Meter
from attacks.experiment.units import FAULTS, keep_fault
from attacks.runtime.values import stored
from attacks.schema.run import SECTIONS
from attacks.study.make import class_at, make
from attacks.study.study import Study


@stored("section")
class SectionResult(NamedTuple):
    """The `rows` of a section's file; the `facts` that no row holds, such as passes; and what its drawing shows."""

    rows: Sequence[Row]
    facts: Mapping[str, Any] = {}
    drawing: Any = None


@dataclass(frozen=True)
class Section:
    """Settings of a section of so many `pictures`, and functions from files to rows and from rows to figures."""

    pictures: int
    #: Whether a perturbation that pictures share was made from those that are judged.
    fit: bool = field(default=False, kw_only=True)

    #: Its key in metrics.json, and the stem of its file.
    key: ClassVar[str] = ""
    #: Its key of `evaluate` that says how many pictures it has, if that is another one; 0: no section.
    count_key: ClassVar[str] = ""
    #: Its drawing in the run directory, KEY.png, if it has one, and the function that `draw` calls with its path.
    figure: ClassVar[str | None] = None
    drawer: ClassVar[str] = ""
    #: The facts that `viewproof verify` takes as they were recorded, and their shapes (see `misfit`).
    facts: ClassVar[Mapping[str, Any]] = {}
    #: Columns that are judged: numbers of the size of a cosine, for they may differ by `Slack` of `verify`. All
    #: others say of what, in words or whole numbers, and no two rows say it of the same.
    measures: ClassVar[tuple[str, ...]] = ("cosine", "success", "likeness")
    measures += ("coverage", "view_coverage", "effective_coverage")
    #: Columns that follow from the rows of all pictures, so that the rows of some have others.
    derived: ClassVar[tuple[str, ...]] = ()
    #: Whether `rows` repeats an attack, so that `viewproof verify` does not make its rows again; whether the rows of
    #: a picture depend on the others, so that it does so for all pictures only (`--sample 1`); and whether it has
    #: rows of pictures that are not judged.
    attacks: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    unjudged: ClassVar[bool] = False

    @classmethod
    def of(cls, study: Study) -> "Section | None":
        """The section as configured; None without one. Raises ValueError for settings that do not fit the study."""
        count = getattr(study.evaluate, cls.count_key or cls.key)
        return make(cls, study.evaluate, "evaluate", pictures=count, **cls.arguments(study)) if count else None

    @classmethod
    def arguments(cls, study: Study) -> dict[str, Any]:  # noqa: ARG003
        """Its arguments that no key of `evaluate` holds."""
        return {}

    def sample(self, bench: Bench) -> Sample:
        """Its pictures, spread evenly over their clusters."""
        queries = bench.study.queries
        return sample_of(bench, range(len(queries)) if self.unjudged else queries.judged, self.pictures)

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:
        """The rows of the pictures of a sample, from the files of the run. Every process of the world calls this."""
        raise NotImplementedError

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The content of metrics.json but for the facts, from rows as `rows` returns them or as their file has them.
        Raises ValueError where they are not of this section."""
        raise NotImplementedError

    def draw(self, path: Path, drawing: Any) -> None:
        """Save the drawing of `rows` to its file."""
        class_at(self.drawer)(path, drawing)  # found here, because it imports matplotlib

    def recorded_facts(self, bench: Bench, content: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The facts of a finished run, from its `content` in metrics.json; what follows from others is computed."""
        return {key: content[key] for key in self.facts}

    def derived_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows with the columns `derived` computed again."""
        return rows


def rows_of_section(section: Section, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:
    """The rows of a section, made for the pictures of each shape together; facts and drawing are of the first."""
    shapes = [bench.study.queries.shapes[row] for row in sample.rows.tolist()]
    groups = [[i for i, other in enumerate(shapes) if other == shape] for shape in dict.fromkeys(shapes)]
    if len(groups) < 2:
        return section.rows(bench, sample, meter)
    parts = [section.rows(bench.under(f"shape.{k}"), sample.only(rows), meter) for k, rows in enumerate(groups)]
    return parts[0]._replace(rows=[row for part in parts for row in part.rows])


def sample_of(bench: Bench, rows: Sequence[int], count: int) -> Sample:
    """`count` of the pictures `rows`, or all, spread evenly over their clusters."""
    queries = bench.study.queries
    clusters = [queries.clusters[row] for row in rows]
    sample_rows = [rows[i] for i in evenly(clusters, min(count, len(rows)))]
    names, clusters = ([column[row] for row in sample_rows] for column in (queries.names, queries.clusters))
    return Sample(torch.tensor(sample_rows), tuple(names), tuple(clusters))


def pictures_of(bench: Bench, sample: Sample) -> dict[str, Tensor]:
    """The pictures of a sample (n,3,H,W) by arm, read back from their files."""
    return {arm: bench.exhibits.pictures(arm, sample.rows.tolist()) for arm in bench.study.arms}


def drift_result(drifts: Drift, sample: Sample) -> SectionResult:
    """The rows of a drift that was measured on a sample."""
    return SectionResult(drifts.rows(sample), {"cost": {"forward": drifts.forward, "seconds": drifts.seconds}})


def sections_of(study: Study) -> dict[str, Section]:
    """The configured sections by their key in metrics.json, in the order in which they are made."""
    fit = FIT in study.queries.split and JUDGE not in study.queries.split
    sections = {name: class_at(place).of(study) for name, place in SECTIONS.items()}
    return {name: replace(section, fit=fit) for name, section in sections.items() if section is not None}


def check(study: Study) -> None:
    """Check the settings of the sections before anything is attacked. Raises ValueError in one line."""
    config = study.evaluate
    sections_of(study)
    if config.pipeline is not None and study.pipeline is None:
        raise ValueError(
            f"`evaluate.pipeline` must be null or the name of a resizer; a function is given from Python, as "
            f"robustness(pipeline=...); got {config.pipeline!r}"
        )
    if config.failure and not study.transforms.dims:
        raise ValueError(
            "`evaluate.failure` must be 0 where no stage of the views varies, so that every view is the same; add "
            "stages to `transforms`"
        )


@dataclass(frozen=True, eq=False)
class Sections:
    """The sections of a run, the results of those that have not failed, the cost of each, and reasons of failures."""

    sections: Mapping[str, Section]
    results: Mapping[str, SectionResult]
    costs: dict[str, Cost] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def content(self, name: str) -> dict[str, Any] | None:
        """The content of a section in metrics.json; None where it was not made."""
        if (result := self.results.get(name)) is None:
            return None
        section = self.sections[name]
        rows = [{**row, "split": FIT} for row in result.rows] if section.fit else result.rows
        return {**section.summary(rows), **result.facts}


def measure_sections(bench: Bench, drift: Drift | None) -> Sections:
    """All configured sections; every process of the world takes part. The `drift` is measured already."""
    sections, meter = sections_of(bench.study), bench.meter()
    results: dict[str, SectionResult] = {}
    costs: dict[str, Cost] = {}
    failed: dict[str, str] = {}
    for name, section in sections.items():
        if name == "drift" and drift is not None:
            results[name] = drift_result(drift, section.sample(bench))
            continue
        bench.progress.part(name)
        try:
            with memory_told():
                results[name], costs[name] = bench.checkpoint.once(
                    name, partial(_rows_and_cost, section, bench, meter)
                )
        except (*FAULTS, ValueError) as error:  # the tables of the arms do not need it
            if bench.world.size > 1:  # each process may have another error
                raise
            keep_fault(bench, error, name)
            failed[name] = str(error)
        meter.read()
    return Sections(sections, results, costs, failed)


def _rows_and_cost(section: Section, bench: Bench, meter: Meter) -> tuple[SectionResult, Cost]:
    result = rows_of_section(section, bench, section.sample(bench), meter)
    cost = meter.read()
    if "cost" in result.facts:  # its hooks see the encoder itself, which no meter counts
        cost = Cost(**result.facts["cost"])
    return result, cost
