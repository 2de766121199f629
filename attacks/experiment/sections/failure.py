"""The probability of rare failures of some pictures, in both arms."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.rare.failure import ARMS, Arm, PictureFailure, failure_summary, margin_score
from attacks.evaluation.rare.splitting import rare
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult
from attacks.report.view_sheet import draw_failures
from transforms.doors import unchecked
from transforms.draws import stream


@dataclass(frozen=True)
class FailureSection(Section):
    """The section `failure`. A picture's rows do not depend on the others.

    Args:
        particles: of a search.
    """

    particles: int

    key: ClassVar[str] = "failure"
    figure: ClassVar[str | None] = "failure.png"

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        numbers, seed = sample.rows.tolist(), bench.study.seed
        results = [failure_of(bench, row, arm, self.particles, seed) for arm in ARMS for row in numbers]
        return SectionResult([failure.row() for failure in results], {}, results)

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        return failure_summary(rows) | {"particles": self.particles}

    def draw(self, path: Path, drawing: Any) -> None:
        draw_failures(path, drawing)


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
    figures = (estimate.p, estimate.low, estimate.high, estimate.worth, estimate.passes, estimate.method)
    return PictureFailure(name, cluster, arm, *figures, values, view)
