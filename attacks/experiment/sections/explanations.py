"""Maps of what the encoder looks at, before and after the attack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.explain.explanation import explain, explanation_summary
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult, pictures_of


@dataclass(frozen=True)
class ExplanationsSection(Section):
    """The section `explanations`."""

    key: ClassVar[str] = "explanations"
    figure: ClassVar[str | None] = "explanations.png"
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
        return SectionResult(
            result.rows(sample), {"layer": result.layer, "missing": list(result.missing), "cost": cost}, result
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return explanation_summary(rows)

    def draw(self, path: Path, drawing: Any) -> None:
        from attacks.report.panels import draw_explanations  # here: matplotlib takes a while to import

        draw_explanations(path, drawing)
