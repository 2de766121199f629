"""Pictures that the configured pipeline shows otherwise than people see them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.eot.bank import Bank
from attacks.evaluation import detection
from attacks.evaluation.clusters import Row, Sample
from attacks.experiment.bench import Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult
from transforms import Compose

#: Pictures that are resized at once.
BLOCK = 16


@dataclass(frozen=True)
class DetectionSection(Section):
    """The section `detection`, of all judged pictures.

    Args:
        pipeline: its name in the configuration.
    """

    pipeline: str

    key: ClassVar[str] = "detection"
    facts: ClassVar[Mapping[str, Any]] = {"size": [int]}
    derived: ClassVar[tuple[str, ...]] = ("threshold", "flagged")

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        pipeline, judge, rows = bench.study.pipeline, bench.judge, sample.rows.tolist()
        assert pipeline is not None
        encoder = bench.counter if bench.world.first else bench.counter.encoder  # every process computes it

        def encode(pictures: Tensor) -> Tensor:
            features = Bank(Compose([]), pictures.new_zeros(1, 0)).features(pictures, encoder, bench.chunk)[:, 0]
            return features if judge.signature is None else judge.signature(features)

        blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        cosine = {
            arm: torch.cat(
                [detection.cosines(bench.exhibits.pictures(arm, block), pipeline, encode) for block in blocks]
            )
            for arm in bench.study.arms
        }
        return SectionResult(detection.flagged_rows(cosine, sample), {"size": list(pipeline.size)})

    def recorded_facts(self, bench: Bench, content: Mapping[str, Any]) -> dict[str, Any]:
        """The size is as recorded where the pipeline was a function that is not here."""
        pipeline = bench.study.pipeline
        return {"size": content["size"] if pipeline is None else list(pipeline.size)}

    def derived_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        return detection.derived_rows(rows)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return detection.detection_summary(rows) | {"pipeline": self.pipeline}
