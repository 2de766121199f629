"""Views that no attack has used, on which everything is judged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.engine.preparation import fall_back
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.tree import Encoder, Tree, embeddings, map_tree
from attacks.eot.batching import Group, Pass, in_passes
from attacks.eot.estimator import check_count, check_pipeline
from attacks.eot.faults.locate import Query, not_finite
from attacks.eot.problem import Problem
from attacks.eot.protocols import Objective, Perturbation
from attacks.runtime.distributed import ALONE, World
from transforms import Compose, Sobol
from transforms.devices import uploaded
from transforms.doors import PastDoors, unchecked
from transforms.draws import stream
from transforms.scene import Scene, Shown, base_of, scene_of, taken


class Bank(NamedTuple):
    """Fixed views: a pipeline and coordinates `u` (V,dims)."""

    transforms: Compose
    u: Tensor

    def losses(
        self,
        images: Shown,
        anchor: Tree,
        encoder: Encoder,
        objective: Objective,
        chunk: int,
        *,
        untouched: Tensor | None = None,
    ) -> Tensor:
        """The loss of each picture from each view, at most `chunk` views at a time: (N,...) -> (N,V). A paired
        objective needs the `untouched` pictures (N,C,H,W) too. Raises NotFinite."""
        return self.losses_of(judged(images, anchor, encoder, objective, untouched), chunk)

    @torch.no_grad()
    def losses_of(self, problem: Problem, chunk: int, world: World = ALONE, step: int | None = None) -> Tensor:
        """The same for finished pictures as a problem (see `judged`). Raises NotFinite, with the `step`."""
        query = self.query(problem, step)
        mine = world.share(len(self.u))

        def run() -> Tensor:
            losses = problem.images.new_zeros(len(problem), len(self.u))
            for part, values in in_passes(partial(_part, query), len(problem), mine, chunk):
                views = uploaded(torch.tensor(part.groups[0]), losses.device)
                losses[part.images.start : part.images.stop].index_copy_(1, views, values.to(losses))
            world.sum(losses)
            return losses

        losses = run()
        if _finite(losses):
            return losses
        exact = fall_back(problem.encoder, run, _finite)
        if exact is None:
            raise not_finite(query, ~losses.isfinite())
        return exact

    @torch.no_grad()
    def features(
        self, images: Shown, encoder: Encoder, chunk: int, rows_of_bank: Sequence[int] | slice = slice(None)
    ) -> Tensor:
        """Embeddings (N,V,D) of N pictures from each view, or those of `rows_of_bank`, at most `chunk` at a time."""
        part_bank, encoder = self._replace(u=self.u[rows_of_bank]), in_native_precision(encoder)
        parts: dict[tuple[int, Group], Tensor] = {}
        for part, rows in part_bank.encoded(images, encoder, chunk, range(len(part_bank.u))):
            parts |= {(i, part.groups[0]): row for i, row in zip(part.images, rows, strict=True)}
        features = torch.cat([parts[key] for key in sorted(parts)])
        return features.view(len(base_of(images)), len(part_bank.u), *features.shape[1:])

    @torch.no_grad()
    def encoded(
        self, images: Shown, encoder: Encoder, chunk: int, views: Sequence[int]
    ) -> Iterator[tuple[Pass, Tree]]:
        """The encoder's answers (n,v,...) for n pictures from each of v `views`, pass by pass (see `in_passes`)."""

        def encode(part: Pass) -> Tree:
            rows = torch.tensor(part.images)
            u = self.u[list(part.groups[0])].repeat(len(rows), 1)
            with PastDoors():
                views = unchecked(self.transforms)(taken(images, rows), u)
                answer: Any = unchecked(encoder)(views, **encoder_draws(self.transforms, u))
            answer = embeddings(answer, "the encoder's answer", len(u))
            return map_tree(answer, lambda leaf: leaf.unflatten(0, (len(rows), -1)))

        yield from in_passes(encode, len(base_of(images)), views, chunk)

    def query(self, problem: Problem, step: int | None = None) -> Query:
        rows = torch.arange(len(problem), device=problem.images.device)
        return Query(problem, self.transforms, NO_DELTA, self.u, rows, "evaluate", step)


#: Finished pictures have no delta.
NO_DELTA = torch.zeros(0)


def _part(query: Query, part: Pass) -> Tensor:
    numbers = torch.tensor(part.images)
    u = query.u[list(part.groups[0])].repeat(len(numbers), 1)
    return query.problem.losses(query.transforms, query.delta, numbers, u).view(len(numbers), -1)


def _finite(losses: Tensor) -> bool:
    return bool(losses.isfinite().all())


@dataclass(frozen=True, eq=False)
class Finished:
    """Pictures (N,C,H,W), or a scene of them, that no longer change: what judging needs of a perturbation."""

    pictures: Shown
    shared: ClassVar[bool] = True

    def take(self, rows: Tensor) -> "Finished":
        return Finished(taken(self.pictures, rows))

    def scene(self, images: Tensor, delta: Tensor) -> Scene:  # noqa: ARG002
        return scene_of(self.pictures)


def judged(
    pictures: Shown, anchor: Tree, encoder: Encoder, objective: Objective, untouched: Tensor | None = None
) -> Problem:
    """Finished pictures as a problem, for `Bank.losses_of`. A paired objective compares each view with that of the
    `untouched` pictures (N,C,H,W). Raises ValueError where these are needed and missing."""
    if objective.paired and untouched is None:
        raise ValueError(
            "a paired objective compares each view with that of the picture before the attack; got None: pass these "
            "pictures (N,C,H,W) as `untouched`"
        )
    images = base_of(pictures) if untouched is None else untouched
    return Problem(images, anchor, encoder, objective, cast(Perturbation, Finished(pictures)))


def bank(transforms: Compose, views: int, *, seed: int, purpose: str) -> Bank:
    """`views` scrambled Sobol points of the pipeline's cube; another `purpose`, other points.

    Examples:
        >>> from attacks import bank
        >>> from transforms import Affine, Compose
        >>> camera = Compose([Affine(degrees=20)])
        >>> views = bank(camera, 128, seed=0, purpose="evaluate")
        >>> views.u.shape, torch.equal(views.u, bank(camera, 128, seed=0, purpose="select").u)
        (torch.Size([128, 5]), False)
    """
    check_pipeline(transforms)
    check_count("views", views)
    return Bank(transforms, Sobol()(views, transforms.dims, seed=stream(seed, purpose)))
