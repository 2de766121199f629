"""What a section is: rows from the files of a run, figures from the rows, and a drawing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from attacks.data.gallery import evenly
from attacks.evaluation.clusters import Row, Sample
from attacks.experiment.bench import Bench, Meter
from attacks.runtime.values import stored
from attacks.study.make import make
from attacks.study.study import Study


@stored("section")
class SectionResult(NamedTuple):
    """The `rows` of a section's file; the `facts` that no row holds, such as passes and seconds; and what its drawing
    shows."""

    rows: Sequence[Row]
    facts: Mapping[str, Any] = {}
    drawing: Any = None


@dataclass(frozen=True)
class Section:
    """The settings of a section of so many `pictures`, and the functions from files to rows and from rows to
    figures."""

    pictures: int

    #: Its key in metrics.json, and the stem of its file.
    key: ClassVar[str] = ""
    #: Its key of `evaluate` that says how many pictures it has, if that is another one; 0: no section.
    count_key: ClassVar[str] = ""
    #: Its drawing in the run directory, KEY.png, if it has one.
    figure: ClassVar[str | None] = None
    #: The facts that `viewproof verify` takes as they were recorded, and their shapes (see `misfit`).
    facts: ClassVar[Mapping[str, Any]] = {}
    #: Columns that are judged; all others say of what.
    measures: ClassVar[tuple[str, ...]] = ("cosine", "success", "likeness")
    measures += ("coverage", "view_coverage", "effective_coverage")
    #: Columns that follow from the rows of all pictures, so that the rows of some have others.
    derived: ClassVar[tuple[str, ...]] = ()
    #: Whether `rows` repeats an attack, whether the rows of a picture depend on the others, and whether it has rows
    #: of pictures that are not judged.
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
        raise NotImplementedError

    def recorded_facts(self, bench: Bench, content: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The facts of a finished run, from its `content` in metrics.json; what follows from others is computed."""
        return {key: content[key] for key in self.facts}

    def derived_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows with the columns `derived` computed again."""
        return rows


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
