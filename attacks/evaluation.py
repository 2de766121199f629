"""Judging pictures on views that no attack has seen.

The bank of views is fixed by a seed of its own, so every arm is seen from the same views (paired), and the attack's
draws never coincide with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.distributed import ALONE, World
from attacks.eot import view
from attacks.parts import Encoder, Objective
from attacks.randomness import drawn
from attacks.trees import Tree, joined, take
from transforms import Compose, Shown, Sobol, base_of, scene_of, stream, taken


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
    ) -> Tensor:
        """The loss of each picture from each view, at most `chunk` views at a time: N pictures, (N,...) -> (N,V). A
        paired objective needs the `untouched` pictures (N,C,H,W) too."""
        twins = twins_of(objective, untouched)
        base = base_of(images)
        mine, losses = list(world.share(len(self.u))), base.new_zeros(len(base), len(self.u))
        for i in range(len(base)):
            for places in torch.tensor(mine, dtype=torch.long, device=base.device).split(chunk) if mine else ():
                u = self.u[places]
                if twins is None:
                    beside = take(anchor, torch.full_like(places, i))
                else:
                    beside = encoder(view(self.transforms, scene_of(twins[i, None]), u), **drawn(self.transforms, u))
                found = encoder(view(self.transforms, taken(images, i), u), **drawn(self.transforms, u))
                losses[i, places] = objective(found, beside).to(losses)
        world.sum(losses)
        return losses

    @torch.no_grad()
    def features(
        self, images: Shown, encoder: Encoder, chunk: int, only: Sequence[int] | slice = slice(None)
    ) -> Tensor:
        """Embeddings of each picture from each view (or from some of them): N pictures -> (N,V,D), at most `chunk`
        views at a time."""
        rows = []
        for i in range(len(base_of(images))):
            scene = taken(images, i)
            parts = [
                encoder(view(self.transforms, scene, u), **drawn(self.transforms, u))
                for u in self.u[only].split(chunk)
            ]
            rows.append(torch.cat(parts))
        return torch.stack(rows)


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


class Scores(NamedTuple):
    """For each picture and view: `cosine` (N,V) to the picture's clean embedding, and `nearest` (N,V), the row of
    the gallery that the view is taken for."""

    cosine: Tensor
    nearest: Tensor


@torch.no_grad()
def embed(images: Tensor, encoder: Encoder, device: torch.device, chunk: int = 64) -> Tree:
    """The embeddings of pictures seen directly: (N,C,H,W) -> (N,D) on `device`, or a tree of such."""
    return joined([encoder(part.to(device)) for part in images.split(chunk)], torch.cat)


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
) -> Scores:
    """Score pictures on a bank.

    Args:
        images: (N,3,H,W) in [0,1], as read back from their files, perhaps with a patch on them.
        clean: (N,D) embeddings of the untouched pictures, seen directly.
        gallery: (G,D) embeddings of the pictures that a view could be taken for.
        world: the processes that share the views; each gets all the scores.
        signature: of the plain encoder (see `signature_of`), where `encoder` is wrapped; None for that of `encoder`.
    """
    signature = signature or signature_of(encoder)
    if signature is not None:
        clean, gallery = signature(clean), signature(gallery)
    gallery, mine = F.normalize(gallery, dim=1), list(world.share(len(bank.u)))
    base = base_of(images)
    cosine = base.new_zeros(len(base), len(bank.u))
    nearest = torch.zeros_like(cosine, dtype=torch.long)
    if mine:
        found = bank.features(images, encoder, chunk, mine)
        found = F.normalize(found if signature is None else signature(found), dim=2)
        cosine[:, mine] = (found * F.normalize(clean, dim=1)[:, None]).sum(2).to(cosine)
        nearest[:, mine] = (found @ gallery.T).argmax(2)
    world.sum(cosine, nearest)
    return Scores(cosine, nearest)
