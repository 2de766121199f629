"""File formats and resizers on some pictures. A patch is deployed within the picture that contains it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from attacks.encoders.defended import view_defence
from attacks.evaluation import deployment
from attacks.evaluation.clusters import Row, Sample
from attacks.experiment.bench import Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult, pictures_of


@dataclass(frozen=True)
class DeploymentSection(Section):
    """The section `deployment`.

    Args:
        size: (height, width) after resizing.
        ratios: of the size that a resizer makes to `size`.
    """

    size: tuple[int, int]
    ratios: tuple[float, ...]

    key: ClassVar[str] = "deployment"
    figure: ClassVar[str | None] = "deployment.png"
    facts: ClassVar[Mapping[str, Any]] = {"missing": [str]}

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        study, pictures = bench.study, pictures_of(bench, sample)
        defence = view_defence(study.transforms)
        result = deployment.deployment(pictures, sample, bench.judge, self.size, self.ratios, defence, study.seed)
        return SectionResult(result.rows, {"missing": list(result.missing)}, result.example)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return deployment.deployment_summary(rows) | {"size": list(self.size)}

    def draw(self, path: Path, drawing: Any) -> None:
        from attacks.report.panels import draw_deployment  # here: matplotlib takes a while to import

        draw_deployment(path, drawing)
