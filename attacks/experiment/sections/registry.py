"""The sections of a run: which are configured, and what they give."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attacks.eot.batching import memory_told
from attacks.evaluation.drift import Drift
from attacks.experiment.bench import Bench, Cost, Meter
from attacks.experiment.sections.judged import drift_result
from attacks.experiment.sections.section import Section, SectionResult
from attacks.experiment.units import FAULTS, keep_fault
from attacks.schema.run import SECTIONS
from attacks.study.make import class_at
from attacks.study.study import Study


def sections_of(study: Study) -> dict[str, Section | None]:
    """The sections by their key in metrics.json, in the order in which they are made; None for one that is not
    configured."""
    return {name: class_at(place).of(study) for name, place in SECTIONS.items()}


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
    """The sections of a run, the results of those that are configured and have not failed, the cost of each, and the
    reasons of those that failed."""

    sections: Mapping[str, Section | None]
    results: Mapping[str, SectionResult]
    costs: dict[str, Cost] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def content(self, name: str) -> dict[str, Any] | None:
        """The content of a section in metrics.json; None where it was not made."""
        section, result = self.sections[name], self.results.get(name)
        return None if section is None or result is None else {**section.summary(result.rows), **result.facts}


def measure_sections(bench: Bench, drift: Drift | None) -> Sections:
    """All configured sections; every process of the world takes part. The `drift` is measured already."""
    sections, meter = sections_of(bench.study), bench.meter()
    results: dict[str, SectionResult] = {}
    costs: dict[str, Cost] = {}
    failed: dict[str, str] = {}
    for name, section in sections.items():
        if section is None:
            continue
        if name == "drift" and drift is not None:
            results[name] = drift_result(drift, section.sample(bench))
            continue
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
    result = section.rows(bench, section.sample(bench), meter)
    cost = meter.read()
    if "cost" in result.facts:  # its hooks see the encoder itself, which no meter counts
        cost = Cost(**result.facts["cost"])
    return result, cost
