"""The judge of a run, which scores its pictures on any bank of views."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.data.gallery import Gallery
from attacks.encoders.tree import Encoder
from attacks.eot.bank import Bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.clusters import Row, Sample, by_cluster, column_of, grouped, totals
from attacks.evaluation.per_image import comparison_figures, has_fit_rows, mean_figures
from attacks.evaluation.retrieval import Rows, impostors
from attacks.evaluation.scores import Acceptance, Right, Scores, evaluate
from attacks.inference.bounded import interval, rate
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import stored
from transforms.scene import Shown


@stored("scores.cell")
class CellScores(NamedTuple):
    """`cosine` (N,V) of N pictures from V views to the clean embedding, the attacker's `success` (N,V), and the
    pictures' `clusters`; `fit`: a shared perturbation was made from them."""

    cosine: Tensor
    success: Tensor
    clusters: tuple[str, ...] = ()
    fit: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Both with their intervals, over the clusters, or ranges."""
        cosines, shares = by_cluster(self.cosine.double().mean(1), self.clusters), self.shares
        values = {"success": (rate(shares, self.trials), shares), "cosine": (interval(cosines, -1), cosines)}
        return {name: mean_figures(*value, self.fit) for name, value in values.items()}

    @property
    def shares(self) -> Tensor:
        """Each cluster's share of views with success, (C,)."""
        return by_cluster(self.success.double().mean(1), self.clusters)

    @property
    def trials(self) -> Tensor:
        """The number of views of each cluster, (C,)."""
        return totals(torch.full((len(self.success),), float(self.success.shape[1])), self.clusters)

    def rows(self, sample: Sample, **key: object) -> list[dict[str, object]]:
        """A row for each picture of the sample and each view, `key` first."""
        return [
            key | {"picture": name, "cluster": cluster, "view": view, "cosine": cosine, "success": hit}
            for name, cluster, cosines, hits in zip(
                sample.names, sample.clusters, self.cosine.tolist(), self.success.tolist(), strict=True
            )
            for view, (cosine, hit) in enumerate(zip(cosines, hits, strict=True))
        ]


def cells_of(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], CellScores]:
    """The rows of `CellScores.rows`, as they were made or read back from their file, as cells by the text of some
    columns, in order of first appearance. Raises ValueError where cells have not the same pictures and views."""
    groups = grouped(rows, *columns)
    places = [(row["picture"], row["cluster"], str(row["view"])) for row in next(iter(groups.values()), [])]
    clusters = tuple(str(cluster) for _, cluster in dict.fromkeys(place[:2] for place in places))
    cells = {}
    for key, group in groups.items():
        if [(row["picture"], row["cluster"], str(row["view"])) for row in group] != places:
            raise ValueError(f"its rows of {', '.join(filter(None, key))} are not of the same pictures and views")
        cosine, success = (column_of(group, name).view(len(clusters), -1) for name in ("cosine", "success"))
        cells[key] = CellScores(cosine, success.bool(), clusters, has_fit_rows(rows))
    return cells


def cell_differences(pairs: Mapping[Any, tuple[CellScores, CellScores]]) -> dict[Any, dict[str, Any]]:
    """The difference in success of two attacks in each cell of a table, for all of them at once (see `secondary`)."""
    return {key: comparison_figures(a.shares, b.shares, a.fit, len(pairs)) for key, (a, b) in pairs.items()}


@dataclass(frozen=True, eq=False)
class Judge:
    """Scores pictures of a run against its gallery.

    Args:
        encoder: in full precision.
        own: (N,D) embeddings of all untouched pictures.
        gallery: (G,D) embeddings of `known`, which views are matched with; perhaps mapped from a file.
        truth: (N,) each picture's row of the gallery.
        goal: (N,) the attacker's target row, or None.
        neighbours: the number of nearest rows that vote on an identity.
        chunk: most views in memory at once.
        acceptance: of a verification; None: the nearest row decides.
        limits: (N,) of a detector's score (see `score_limits`); None without one.
    """

    encoder: Encoder
    own: Tensor
    gallery: Tensor | Rows
    known: Gallery | Classes
    truth: Tensor
    goal: Tensor | None = None
    neighbours: int = 5
    chunk: int = 64
    world: World = ALONE
    signature: Callable[[Tensor], Tensor] | None = None
    acceptance: Acceptance | None = None
    limits: Tensor | None = None

    def __call__(
        self, scenes: Shown, rows: Tensor, bank: Bank, progress: Callable[[], None] = lambda: None
    ) -> Scores:
        """The scores, on the CPU, of the pictures with numbers `rows` (n,); `progress` is called after each."""
        voters = 0 if self.known.alone(self.truth) is None else self.neighbours
        goal = None if self.goal is None else self.goal[rows]
        embeddings = self.own[rows.to(self.own.device)]
        centre: Tensor | None = None
        if self.acceptance is not None and self.acceptance.metric == "l2":
            centre = embeddings if goal is None else self.gallery[goal.to(self.gallery.device)]
        limits = None if self.limits is None else self.limits[rows]
        threshold = self.known.threshold if isinstance(self.known, Classes) else None
        scores = evaluate(
            scenes,
            embeddings,
            self.gallery,
            encoder=self.encoder,
            bank=bank,
            chunk=self.chunk,
            world=self.world,
            signature=self.signature,
            right=Right(self.truth[rows], goal, self.known.label_numbers, voters, centre, threshold, limits),
            progress=progress,
        )
        return concatenate([scores])

    def impostors(self) -> Tensor | None:
        """The cosines of clean pairs of different things (P,); None for classes."""
        if isinstance(self.known, Classes):
            return None
        rows = replace(self.gallery, signature=self.signature) if isinstance(self.gallery, Rows) else self.embeddings
        return impostors(rows, self.known.label_numbers, self.known.cluster_numbers)

    @property
    def embeddings(self) -> Tensor:
        """The gallery's embeddings, as they are compared, in memory."""
        rows = self.gallery if isinstance(self.gallery, Tensor) else self.gallery[torch.arange(len(self.gallery))]
        return rows if self.signature is None else self.signature(rows)

    def success(self, scores: Scores, rows: Tensor) -> Tensor:
        """Whether the attack succeeds, (n,V): the nearest row shows the target, or without a target anything but what
        the picture itself shows; in a verification: the view is accepted as the target, or no longer as the picture.
        A view without an answer is no success."""
        if self.acceptance is not None:
            alike = self.acceptance.accepts(scores)
        else:
            alike = self.known.same(scores.nearest, (self.truth if self.goal is None else self.goal)[rows, None])
        hit = alike if self.goal is not None else ~alike
        return hit if scores.no_answer is None else hit & ~scores.no_answer


def score_cells(judge: Judge, scenes: Shown, rows: Tensor, bank: Bank) -> CellScores:
    """The scores on a bank, on the CPU."""
    scores = judge(scenes, rows, bank)
    return CellScores(scores.cosine.cpu(), judge.success(scores, rows).cpu())


def resisting(scores: Scores) -> Tensor:
    """The cosine (N,) of each picture to its clean embedding, in the view that resists the attacker most: the one
    least like the target, or without a target the one most like the picture."""
    if scores.goal_cosine is None:
        return scores.cosine.amax(1)
    return scores.cosine.gather(1, scores.goal_cosine.argmin(1, keepdim=True))[:, 0]


def concatenate(parts: list[Scores]) -> Scores:
    """Scores of pictures concatenated, on the CPU."""
    columns = zip(Scores._fields, zip(*parts, strict=True), strict=True)
    return Scores(**{name: torch.cat(column).cpu() for name, column in columns if column[0] is not None})
