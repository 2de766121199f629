"""Scores of pictures on held-out views: all arms are scored on the same ones, and the attack never draws them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.gallery import Pictures
from attacks.data.vectors import has_direction
from attacks.encoders.contract import check_encoder
from attacks.encoders.panel import ScoredEncoder
from attacks.encoders.tree import Encoder, Tree, check_mode, embedding, join_trees, map_tree, optional, silence
from attacks.eot.bank import Bank, judged
from attacks.eot.batching import in_parts
from attacks.eot.faults.locate import not_finite
from attacks.evaluation.retrieval import Mark, Rows, best, search, votes
from attacks.objectives.embedding import Away
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import stored
from attacks.solvers.checks import check_images
from transforms.devices import uploaded
from transforms.scene import Shown, base_of

#: Views that are compared with the gallery together.
GROUP = 512
#: Scores that need a part of `Right`, and which.
VALUES = {"distance": "centre", "score": "threshold", "detector": "limits"}


@stored("scores")
class Scores(NamedTuple):
    """The scores of N pictures seen from V views.

    cosine: (N,V) to the picture's clean embedding. nearest: (N,V) the nearest row of the gallery.

    With the ground truth (see `Right`), else None:
    rank: (N,V) rank of the first gallery row that shows the same, from 1; ties keep the order of the gallery.
    vote: (N,V) whether the nearest rows, without the picture's own, vote for its identity.
    goal_rank, goal_cosine: (N,V) rank of, and cosine to, the attacker's target.

    distance: (N,V) Euclidean, to the clean embedding or, with a target, to the target's; None for cosines alone.
    score: (N,V) of a task=score, which its threshold is compared with; else None.
    no_answer: (N,V) whether a black box gave none. All else of such a view is that of the clean picture.
    detector: (N,V) of an encoder with a detector, its score minus its limit: below 0 it flags the view.
    """

    cosine: Tensor
    nearest: Tensor
    rank: Tensor | None = None
    vote: Tensor | None = None
    goal_rank: Tensor | None = None
    goal_cosine: Tensor | None = None
    distance: Tensor | None = None
    score: Tensor | None = None
    no_answer: Tensor | None = None
    detector: Tensor | None = None

    def taken(self, rows: Sequence[int], views: Sequence[int] | slice = slice(None)) -> "Scores":
        columns = {name: x[list(rows)][:, views] for name, x in self._asdict().items() if x is not None}
        return Scores(**columns)


@dataclass(frozen=True)
class Acceptance:
    """When a verification accepts a pair: from the cosine `threshold` on, or (l2) up to that distance."""

    threshold: float
    metric: str = "cosine"

    def __post_init__(self) -> None:
        if self.metric not in ("cosine", "l2"):
            raise ValueError(f"`metric` must be cosine or l2; got {self.metric!r}")
        good, span = -1 < self.threshold < 1, "a cosine in (-1,1)"
        if self.metric == "l2":
            good, span = 0 < self.threshold < math.inf, "a distance above 0"
        if not good:
            raise ValueError(f"`threshold` must be {span} with metric={self.metric}; got {self.threshold:g}")

    def accepts(self, scores: Scores) -> Tensor:
        """Whether views are accepted, as the target if there is one, else as their pictures, (N,V)."""
        if self.metric == "l2":
            assert scores.distance is not None
            return scores.distance <= self.threshold
        return (scores.cosine if scores.goal_cosine is None else scores.goal_cosine) >= self.threshold


class Right(NamedTuple):
    """The ground truth: each picture's row of the gallery (N,), the attacker's target row (N,), each row's identity
    (G,) or None where no two rows show the same, the number of `neighbours` that vote, the embeddings (N,D) that
    views have a `distance` to, the `threshold` of a score, and a detector's `limits` (N,)."""

    truth: Tensor
    goal: Tensor | None = None
    labels: Tensor | None = None
    neighbours: int = 5
    centre: Tensor | None = None
    threshold: float | None = None
    limits: Tensor | None = None


@torch.no_grad()
def embed(images: Tensor, encoder: Encoder, device: torch.device, chunk: int = 64) -> Tree:
    """The embeddings of pictures seen directly: (N,C,H,W) -> (N,D) on `device`, or a tree of such."""
    return join_trees([part for _, part in in_parts(lambda part: encoder(part.to(device)), images, chunk)], torch.cat)


def embed_pictures(pictures: Pictures, encoder: Encoder, device: torch.device, chunk: int = 64) -> Tensor:
    """The same of pictures that may be on disk: (N,D)."""
    ranges = pictures.ranges(len(pictures))
    return torch.cat([torch.as_tensor(embed(pictures.only(rows).images, encoder, device, chunk)) for rows in ranges])


def signature_method(encoder: object) -> Callable[[Tensor], Tensor] | None:
    """The method `signature` of an encoder, from features (...,D) to what is compared, such as bits; None without."""
    signature: Callable[[Tensor], Tensor] | None = optional(encoder, "signature")
    return signature


def evaluate(
    images: Shown,
    clean: Tensor,
    gallery: Tensor | Rows,
    *,
    encoder: Encoder,
    bank: Bank,
    chunk: int = 64,
    world: World = ALONE,
    signature: Callable[[Tensor], Tensor] | None = None,
    right: Right | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Scores:
    """Score pictures on a bank.

    Args:
        images: (N,3,H,W) in [0,1], as read back from their files, or scenes with a patch.
        clean: (N,D) embeddings of the untouched pictures, seen directly.
        gallery: (G,D) embeddings of the pictures that views are matched with, compared block by block.
        world: the processes that share the views; each gets all scores.
        signature: see `signature_method`; None for that of `encoder`, which a wrapper may lack.
        right: the ground truth, for ranks and votes.
        progress: called after each picture.

    Raises:
        ValueError: wrong shapes or ranges, or an encoder in training mode.
        NotFinite: (a FloatingPointError) an embedding that is not finite, with the view.

    Examples:
        >>> import torch
        >>> from attacks import bank, evaluate
        >>> from transforms import Brightness, Compose
        >>> encoder, camera = torch.nn.Flatten().eval(), Compose([Brightness(0.1)])
        >>> images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> gallery, views = encoder(images), bank(camera, 8, seed=0, purpose="evaluate")
        >>> scores = evaluate(images[[1, 1]], gallery[:2], gallery, encoder=encoder, bank=views)  # 1 in place of 0
        >>> scores.cosine.shape, scores.nearest.unique().tolist()
        (torch.Size([2, 8]), [1])
    """
    parts = gallery.parts if isinstance(gallery, Rows) else (gallery,)
    base = base_of(images)
    check_images(images, slack=1e-9)  # roundings alone
    _check(base, clean, parts, encoder)
    check_encoder(encoder, base, bank.transforms, tree=False)
    signature, width, anchors = signature or signature_method(encoder), clean.shape[1], clean
    clean = clean if signature is None else signature(clean)
    candidates, mine = Rows(parts, signature), list(world.share(len(bank.u)))
    cosine = base.new_zeros(len(base), len(bank.u))
    kinds = {key: None if key in ("goal_cosine", *VALUES) else torch.long for key in _keys(right)}
    kinds |= {} if silence(encoder, clean) is None else {"no_answer": torch.long}
    columns = {key: torch.zeros_like(cosine, dtype=kind) for key, kind in kinds.items()}
    waiting: list[_Waiting] = []
    limits = None if right is None else right.limits
    for part, features in bank.encoded(images, encoder if limits is None else ScoredEncoder(encoder), chunk, mine):
        views = uploaded(torch.tensor(part.groups[0]), cosine.device)
        if limits is not None:
            ratings, pictures = features["score"][..., 0], slice(part.images.start, part.images.stop)
            columns["detector"][pictures, views] = (ratings - limits[pictures, None].to(ratings)).to(cosine)
            features = torch.where(features["score"].isfinite(), features["features"], torch.nan)
        rows = features.flatten(0, 1) if isinstance(features, Tensor) else features
        if embedding(rows, "the answer of `encoder`", tokens=False).shape[1] != width:
            raise ValueError(f"`clean` must be embedded with `encoder`, {features.shape[2]} wide; got {width}")
        missing = silence(encoder, features)
        if missing is not None:
            columns["no_answer"][part.images.start : part.images.stop, views] = missing.to(columns["no_answer"])
            features = torch.where(missing[..., None], anchors[list(part.images), None].to(features), features)
        finite = features.isfinite().all(2)  # a signature may map NaN to bits
        rankable = bool(finite.all())  # otherwise an error is raised below
        for i, rows, finite_rows in zip(part.images, features, finite, strict=True):
            unit = F.normalize(rows if signature is None else signature(rows), dim=1)
            alike = (unit * F.normalize(clean[i], dim=0)).sum(1)
            if right is not None and right.centre is not None:
                columns["distance"][i, views] = (rows - right.centre[i].to(rows)).norm(dim=1).to(cosine)
            if right is not None and right.threshold is not None:
                columns["score"][i, views] = right.threshold + (rows[:, 1] - rows[:, 0]).to(cosine) / 2
            cosine[i, views] = alike.masked_fill(~finite_rows, torch.nan).to(cosine)
            if rankable:
                waiting.append(_Waiting(i, views, rows))
            if sum(len(group.rows) for group in waiting) >= GROUP:
                _place(columns, waiting, candidates, right)
            if part.groups[0][-1] == mine[-1]:
                progress()
    _place(columns, waiting, candidates, right)
    world.sum(cosine, *columns.values())
    if not bool(cosine.isfinite().all()):
        raise not_finite(bank.query(judged(images, clean, encoder, Away())), ~cosine.isfinite())
    flags = {key: columns[key].bool() for key in ("vote", "no_answer") if key in columns}
    return Scores(cosine, **columns | flags)


def _check(images: Tensor, clean: Tensor, gallery: Sequence[Tensor], encoder: Encoder) -> None:
    check_mode(encoder)
    if clean.dim() != 2 or len(clean) != len(images):
        shape = tuple(clean.shape)
        raise ValueError(f"`clean` must hold one row per image (N,D); got {shape} for {len(images)} images")
    if bool((clean.any(1) & ~has_direction(clean)).any()):  # a row of zeros has the cosine 0
        raise ValueError(
            "`clean` must hold finite embeddings whose length float32 can hold; got another: does the encoder "
            "overflow? scale its answers, for instance to length 1"
        )
    for part in gallery:
        if part.dim() != 2 or part.shape[1] != clean.shape[1]:
            raise ValueError(
                f"`gallery` must hold rows as wide as those of `clean`, (G,{clean.shape[1]}); got shape "
                f"{tuple(part.shape)}: embed both with `encoder`"
            )


def _keys(right: Right | None) -> list[str]:
    if right is None:
        return ["nearest"]
    vote_keys = ["vote"] if right.labels is not None and right.neighbours else []
    goal_keys = [] if right.goal is None else ["goal_rank", "goal_cosine"]
    values = [name for name, part in VALUES.items() if getattr(right, part) is not None]
    return ["nearest", "rank", *vote_keys, *goal_keys, *values]


class _Waiting(NamedTuple):
    """Views of a picture and their embeddings (v,D), not yet compared with the gallery."""

    picture: int
    views: Tensor
    rows: Tensor


def _place(columns: dict[str, Tensor], waiting: list[_Waiting], candidates: Rows, right: Right | None) -> None:
    if not waiting:
        return
    units = [candidates.unit(group.rows) for group in waiting]
    marks, voters = {}, 1
    if right is not None:
        marks["rank"] = _mark(waiting, units, candidates, right.truth, right.labels)
        voters += right.neighbours if "vote" in columns else 0
        if right.goal is not None:
            marks["goal_rank"] = _mark(waiting, units, candidates, right.goal, right.labels)
    unit = torch.cat(units)
    nearest, ranks = search(unit, candidates, voters, list(marks.values()))
    values = {"nearest": nearest[:, 0]} | dict(zip(marks, ranks, strict=True))
    sizes = [len(group.rows) for group in waiting]
    if right is not None:
        pictures = torch.tensor([group.picture for group in waiting]).repeat_interleave(torch.tensor(sizes))
        if "vote" in columns and right.labels is not None:
            truth, labels = (uploaded(group, unit.device) for group in (right.truth[pictures], right.labels))
            values["vote"] = votes(nearest, truth, labels)
        if right.goal is not None:
            values["goal_cosine"] = (unit * candidates.pick(right.goal[pictures])).sum(1)
    for key, value in values.items():
        for group, part in zip(waiting, value.split(sizes), strict=True):
            columns[key][group.picture, group.views] = part.to(columns[key])
    waiting.clear()


def _mark(
    waiting: list[_Waiting], units: list[Tensor], candidates: Rows, rows: Tensor, labels: Tensor | None
) -> Mark:
    """The best row that shows the same as each picture's row of `rows` (N,), view by view."""
    marks = []
    for group, unit in zip(waiting, units, strict=True):
        row = rows[group.picture]
        marks.append(best(unit, candidates, row[None] if labels is None else (labels == labels[row]).nonzero()[:, 0]))
    return Mark(torch.cat([mark.value for mark in marks]), torch.cat([mark.row for mark in marks]))


@torch.no_grad()
def mean_embedding(images: Tensor, encoder: Encoder, bank: Bank, chunk: int = 64) -> Tree:
    """The mean direction of the views of each picture: (N,C,H,W) -> (N,D) of length 1, or a tree of such.

    The embedding of each view is scaled to length 1 before the mean, and the mean after it. Of all directions this
    has the highest mean cosine to the views (directional statistics, Mardia & Jupp 2000). As the anchor of `Away` it
    makes the effect of the views alone no gain. For the metric "l2" take the mean, `bank.features(...).mean(1)`.

    Args:
        images: in [0,1].
        bank: the views, on any device; not those of the evaluation.
        chunk: most views in memory at once.

    Examples:
        >>> import torch
        >>> from attacks import bank
        >>> from attacks.evaluation import mean_embedding
        >>> from transforms import Compose
        >>> from transforms.geometry import Flip
        >>> encoder, views = torch.nn.Flatten().eval(), bank(Compose([Flip(p=0.5)]), 8, seed=0, purpose="anchor")
        >>> images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> mean = mean_embedding(images, encoder, views)
        >>> mean.shape, torch.allclose(mean, mean_embedding(images.flip(3), encoder, views), atol=1e-5)
        (torch.Size([2, 192]), True)
    """
    check_images(images)
    check_encoder(encoder, images, bank.transforms)
    views = bank._replace(u=bank.u.to(images))
    sums: list[list[Tree]] = [[] for _ in images]
    for part, features in views.encoded(images, encoder, chunk, range(len(bank.u))):
        of_part = map_tree(features, lambda leaf: F.normalize(leaf, dim=-1).sum(1))
        for row, i in enumerate(part.images):
            sums[i].append(map_tree(of_part, itemgetter(row)))
    rows = [join_trees(parts, lambda leaves: torch.stack(leaves).sum(0)) for parts in sums]
    return map_tree(join_trees(rows, torch.stack), lambda leaf: F.normalize(leaf, dim=-1))
