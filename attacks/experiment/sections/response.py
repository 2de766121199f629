"""Maps and curves: success over coordinates of the views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attacks.evaluation import response
from attacks.evaluation.clusters import Row, Sample
from attacks.evaluation.response import SlicePlan, axis
from attacks.experiment.bench import Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult
from attacks.study.study import Study
from transforms import Compose
from transforms.wrappers import widened

#: Cells along the sides of a map and along a curve, and views of a cell.
CELLS, CURVE_CELLS, VIEWS = 7, 9, 4
#: The coordinates of maps and curves for `auto`: the first of these that vary, then any other.
TELLING = ("affine angle", "affine scale", "yaw", "distance", "angle", "scale", "shift right", "quality")


@dataclass(frozen=True)
class ResponseSection(Section):
    """The section `response`."""

    plan: SlicePlan

    key: ClassVar[str] = "response"

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:  # noqa: ARG002
        pictures = {arm: bench.exhibits.displayed(arm, sample.rows.tolist()) for arm in bench.study.arms}
        return SectionResult(
            response.response(pictures, sample, bench.judge, self.plan, seed=bench.study.seed, views=VIEWS)
        )

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
