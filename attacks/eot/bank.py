"""Views that no attack has used, on which everything is judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Encoder, Tree, take
from attacks.eot.batching import in_parts
from attacks.eot.faults.certain import Looks, certain_losses
from attacks.eot.protocols import Objective
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Scene, Shown, Sobol, base_of, scene_of, stream, taken
from transforms.compose import view


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


def bank(transforms: Compose, views: int, *, seed: int, purpose: str) -> Bank:
    """`views` scrambled Sobol points of the pipeline's cube; another `purpose`, other points."""
    return Bank(transforms, Sobol()(views, transforms.dims, seed=stream(seed, purpose)))
