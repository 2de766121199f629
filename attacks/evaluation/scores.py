"""Judging pictures on views that no attack has seen.

The bank of views is fixed by a seed of its own, so every arm is seen from the same views (paired), and the attack's
draws never coincide with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Tree, joined, take
from attacks.eot.batching import in_parts
from attacks.eot.estimator import view
from attacks.eot.faults.certain import Looks, certain_losses, located
from attacks.eot.protocols import Encoder, Objective
from attacks.objectives.embedding import Away
from attacks.ranking import ranks, votes
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import kept
from transforms import Compose, Scene, Shown, Sobol, base_of, scene_of, stream, taken


class Bank(NamedTuple):
    """Fixed views: a pipeline and coordinates `u` (V,dims)."""

    transforms: Compose
    u: Tensor

    @torch.no_grad()
    def losses(
        self,
        images: Shown,
        anchor: Tree,
        encoder: Encoder,
        objective: Objective,
        chunk: int,
        world: World = ALONE,
        *,
        untouched: Tensor | None = None,
        step: int | None = None,
    ) -> Tensor:
        """The loss of each picture from each view, at most `chunk` views at a time: N pictures, (N,...) -> (N,V). A
        paired objective needs the `untouched` pictures (N,C,H,W) too. Raises NotFinite, with the `step`, for a loss
        that is not finite."""
        twins = twins_of(objective, untouched)
        base = base_of(images)
        mine = torch.tensor(list(world.share(len(self.u))), dtype=torch.long, device=base.device)

        def look(i: int, places: Tensor) -> Tensor:
            u = self.u[places]
            if twins is None:
                beside = take(anchor, torch.full_like(places, i))
            else:
                beside = encoder(view(self.transforms, scene_of(twins[i, None]), u), **drawn(self.transforms, u))
            return objective(encoder(view(self.transforms, taken(images, i), u), **drawn(self.transforms, u)), beside)

        def run() -> Tensor:
            losses = base.new_zeros(len(base), len(self.u))
            for i in range(len(base)):
                for places, found in in_parts(partial(look, i), mine, chunk):
                    losses[i, places] = found.to(losses)
            world.sum(losses)
            return losses

        return certain_losses(self.looks(images, anchor, encoder, objective, twins, step), run)

    @torch.no_grad()
    def features(
        self, images: Shown, encoder: Encoder, chunk: int, only: Sequence[int] | slice = slice(None)
    ) -> Tensor:
        """Embeddings of each picture from each view (or from some of them): N pictures -> (N,V,D), at most `chunk`
        views at a time."""

        def look(scene: Scene, u: Tensor) -> Tensor:
            found: Tensor = encoder(view(self.transforms, scene, u), **drawn(self.transforms, u))
            return found

        rows = []
        for i in range(len(base_of(images))):
            parts = in_parts(partial(look, taken(images, i)), self.u[only], chunk)
            rows.append(torch.cat([found for _, found in parts]))
        return torch.stack(rows)

    def looks(
        self,
        images: Shown,
        anchor: Tree,
        encoder: Encoder,
        objective: Objective,
        twins: Tensor | None = None,
        step: int | None = None,
    ) -> Looks:
        """What is asked of an encoder where pictures are judged."""
        base = base_of(images)
        twin = None if twins is None else lambda which: scene_of(twins[which])
        rows = torch.arange(len(base), device=base.device)
        return Looks(
            doing="evaluate",
            transforms=self.transforms,
            u=self.u.to(base.device),
            encoder=encoder,
            objective=objective,
            scene=lambda _, which: taken(images, which),
            anchor=lambda which: take(anchor, which),
            images=base,
            rows=rows,
            twin=twin,
            step=step,
        )


def twins_of(objective: Objective, untouched: Tensor | None) -> Tensor | None:
    """The pictures that a paired objective compares with, view by view; None for an objective that is not paired.
    Raises ValueError where they are wanted and missing."""
    if not getattr(objective, "paired", False):
        return None
    if untouched is None:
        raise ValueError(
            "a paired objective compares each view with that of the picture before the attack; got None: pass these "
            "pictures (N,C,H,W) as `untouched`"
        )
    return untouched


@kept
class Scores(NamedTuple):
    """What N pictures seen from V views are taken for.

    cosine: (N,V) to the picture's clean embedding.
    nearest: (N,V) the row of the gallery that the view is taken for.

    The rest only where `evaluate` is told what is right (see `Right`), else None:
    rank: (N,V) place of the first gallery row that shows the same, 1 for the first of all; rows that are equally near
        stand in their own order.
    vote: (N,V) whether the nearest rows, without the picture's own, agree on its identity.
    goal_rank, goal_cosine: (N,V) place of, and cosine to, what the attacker wants.
    """

    cosine: Tensor
    nearest: Tensor
    rank: Tensor | None = None
    vote: Tensor | None = None
    goal_rank: Tensor | None = None
    goal_cosine: Tensor | None = None


class Right(NamedTuple):
    """What a view should be taken for: each picture's row of the gallery (N,), the row that the attacker wants (N,)
    or None, each row's identity (G,) or None where no two show the same, and how many `neighbours` vote."""

    truth: Tensor
    goal: Tensor | None = None
    identity: Tensor | None = None
    neighbours: int = 5


@torch.no_grad()
def embed(images: Tensor, encoder: Encoder, device: torch.device, chunk: int = 64) -> Tree:
    """The embeddings of pictures seen directly: (N,C,H,W) -> (N,D) on `device`, or a tree of such."""
    return joined([found for _, found in in_parts(lambda part: encoder(part.to(device)), images, chunk)], torch.cat)


def bank(transforms: Compose, views: int, *, seed: int, purpose: str) -> Bank:
    """`views` scrambled Sobol points of the pipeline's cube; another `purpose`, other points."""
    return Bank(transforms, Sobol()(views, transforms.dims, seed=stream(seed, purpose)))


def signature_of(encoder: object) -> Callable[[Tensor], Tensor] | None:
    """How an encoder says that its features (...,D) are to be compared, in its method `signature`: a hash by its
    bits. None for the others: as they are."""
    return getattr(encoder, "signature", None)


def evaluate(
    images: Shown,
    clean: Tensor,
    gallery: Tensor,
    *,
    encoder: Encoder,
    bank: Bank,
    chunk: int = 64,
    world: World = ALONE,
    signature: Callable[[Tensor], Tensor] | None = None,
    right: Right | None = None,
    told: Callable[[], None] = lambda: None,
) -> Scores:
    """Score pictures on a bank.

    Args:
        images: (N,3,H,W) in [0,1], as read back from their files, perhaps with a patch on them.
        clean: (N,D) embeddings of the untouched pictures, seen directly.
        gallery: (G,D) embeddings of the pictures that a view could be taken for.
        world: the processes that share the views; each gets all the scores.
        signature: of the plain encoder (see `signature_of`), where `encoder` is wrapped; None for that of `encoder`.
        right: what each picture should be taken for, for ranks and votes.
        told: called after each picture.
    """
    signature = signature or signature_of(encoder)
    if signature is not None:
        clean, gallery = signature(clean), signature(gallery)
    gallery, mine = F.normalize(gallery, dim=1), list(world.share(len(bank.u)))
    base = base_of(images)
    cosine = base.new_zeros(len(base), len(bank.u))
    found = _empty(cosine, right)
    for i in range(len(base)) if mine else ():
        features = bank.features(taken(images, i), encoder, chunk, mine)[0]
        whole = features.isfinite().all(1)  # a signature may make bits of NaN
        seen = F.normalize(features if signature is None else signature(features), dim=1)
        alike = (seen * F.normalize(clean[i], dim=0)).sum(1)
        cosine[i, mine] = alike.masked_fill(~whole, torch.nan).to(cosine)
        if bool(whole.all()):  # or else a view is named below
            for key, value in _placed(seen @ gallery.T, i, right).items():
                found[key][i, mine] = value.to(found[key])
        told()
    world.sum(cosine, *found.values())
    if not bool(cosine.isfinite().all()):
        raise located(bank.looks(images, clean, encoder, Away()), ~cosine.isfinite())
    if "vote" in found:
        found["vote"] = found["vote"].bool()
    return Scores(cosine, **found)


def _empty(like: Tensor, right: Right | None) -> dict[str, Tensor]:
    found = {"nearest": torch.zeros_like(like, dtype=torch.long)}
    if right is None:
        return found
    found["rank"] = torch.zeros_like(found["nearest"])
    if right.identity is not None and right.neighbours:
        found["vote"] = torch.zeros_like(found["nearest"])
    if right.goal is not None:
        found |= {"goal_rank": torch.zeros_like(found["nearest"]), "goal_cosine": torch.zeros_like(like)}
    return found


def _placed(similarity: Tensor, i: int, right: Right | None) -> dict[str, Tensor]:
    """What the views of picture `i` are taken for, from their similarity (V,G) to the gallery."""
    found = {"nearest": similarity.argmax(1)}
    if right is None:
        return found
    rows = torch.arange(similarity.shape[1], device=similarity.device)
    identity = None if right.identity is None else right.identity.to(rows.device)

    def shows(row: Tensor) -> Tensor:
        return rows == row if identity is None else identity == identity[row]

    own = right.truth[i].to(rows.device)
    found["rank"] = ranks(similarity, shows(own))
    if identity is not None and right.neighbours:
        found["vote"] = votes(similarity, identity, int(identity[own]), rows == own, right.neighbours)
    if right.goal is not None:
        goal = right.goal[i].to(rows.device)
        found["goal_rank"] = ranks(similarity, shows(goal))
        found["goal_cosine"] = similarity[:, goal]
    return found
