"""Where in the network the embedding drifts. The rows are made with the units of the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attacks.evaluation import drift
from attacks.evaluation.clusters import Row, Sample
from attacks.experiment.bench import Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult, all_pictures
from attacks.experiment.unit import drift_of


@dataclass(frozen=True)
class DriftSection(Section):
    """The section `drift`: of all pictures; its figures are of the judged ones.

    Args:
        judged: their names.
        views: of a picture.
    """

    judged: frozenset[str]
    views: int

    key: ClassVar[str] = "drift"
    facts: ClassVar[Mapping[str, Any]] = {"cost": {"forward": int, "seconds": int | float}}

    def sample(self, bench: Bench) -> Sample:
        """All pictures."""
        return all_pictures(bench)

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        return result_of(drift_of(bench, sample.rows.tolist()), sample)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return {"views": self.views, **drift.drift_summary([row for row in rows if row["picture"] in self.judged])}


def result_of(drifts: drift.Drift, sample: Sample) -> SectionResult:
    """The rows of a drift that was measured on a sample."""
    cost = {"forward": drifts.forward, "seconds": drifts.seconds}
    return SectionResult(drifts.rows(sample), {"cost": cost})
