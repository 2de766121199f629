"""The run's own attack without each stage of the views in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from attacks.evaluation import ablation
from attacks.evaluation.clusters import Row, Sample
from attacks.experiment.arms import optimise
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.cost import Meter
from attacks.experiment.sections.section import Section, SectionResult, sample_of
from attacks.experiment.unit import attempt_of
from transforms import Compose
from transforms.draws import stream
from transforms.scene import Shown


@dataclass(frozen=True)
class LeftOutSection(Section):
    """The section `left_out`.

    Args:
        steps: of an attack.
        stages: that can be left out.
    """

    steps: int
    stages: tuple[str, ...]

    key: ClassVar[str] = "left_out"
    attacks: ClassVar[bool] = True

    def rows(self, bench: Bench, sample: Sample, meter: Meter) -> SectionResult:
        study, numbers = bench.study, count()
        judged_study = study.only(sample.rows.tolist())
        fit = sample_of(bench, study.queries.attacked, self.pictures).rows.tolist()
        silent = replace(bench, place=replace(bench.place, follow=None))

        def attack(transforms: Compose) -> Shown:
            checkpoint = bench.checkpoint.under(f"left_out.{next(numbers)}")
            fit_study = replace(study.only(fit), transforms=transforms)
            attempt = attempt_of(silent, fit_study, fit, stream(study.seed, "left out"))
            (best, _), cost = checkpoint.once(
                "eot", lambda: (optimise("eot", attempt, meter, checkpoint), meter.peek())
            )
            meter.begin(cost)
            delta = fit_study.perturbation.quantise(best.delta, attempt.knowledge.images)
            return judged_study.perturbation.evaluated(judged_study.queries.images.to(study.device), delta)

        views = len(bench.banks[MAIN].u)
        return SectionResult(
            ablation.left_out(attack, study.transforms, sample, bench.judge, views=views, seed=study.seed)
        )

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        content = ablation.summary(rows)
        if content["stages"] != [*self.stages]:
            raise ValueError(f"its stages must be {', '.join(self.stages)}; got {', '.join(content['stages'])}")
        return content | {"steps": self.steps}
