"""Which view began it, where a loss or a gradient is not finite.

Nothing is computed twice while all is well. Once something is not finite, views are taken one by one, until one
shows it alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.engine import in_float32
from attacks.encoders.randomness import drawn
from attacks.encoders.tree import take
from attacks.eot.faults.fault import Fault, NotFinite, layers_of
from attacks.eot.faults.traced import OneView, ViewTrace, broken, slope_of, traced
from attacks.eot.problem import Problem
from transforms import Compose, scene_of

#: Views that are looked at alone, at most.
MOST = 512


@dataclass(frozen=True, eq=False)
class Query:
    """Losses that were computed: of a problem under `delta`, from the views `u` (n,dims), or from those of each image
    (N,n,dims). `rows` are the numbers of the images in messages; `doing` is "attack" or "evaluate"."""

    problem: Problem
    transforms: Compose
    delta: Tensor
    u: Tensor
    rows: Tensor
    doing: str = "attack"
    step: int | None = None

    def delta_of(self, i: int) -> Tensor:
        """The delta of the i-th image (1,...)."""
        return self.delta[i, None] if len(self.delta) > 1 else self.delta


def located(query: Query, bad: Tensor) -> NotFinite:
    """The error for the first view that is not finite when it is seen alone, in float32: among the images `bad` (N,),
    or the views `bad` (N,V); where there is none, among all."""
    images = (bad if bad.dim() == 1 else bad.any(1)).nonzero()[:, 0].tolist() or range(len(query.problem))
    at = "" if query.step is None else f"step {query.step}: "
    message = f"{at}the loss or its gradient is not finite for image(s) {[int(query.rows[i]) for i in images]}"
    count = 0
    with in_float32(query.problem.encoder):
        chosen = ((image, view) for image in images for view in _views(query, bad, image))
        for i, j in itertools.islice(chosen, MOST):
            count += 1
            fault = _examined(query, i, j)
            if fault is not None:
                return NotFinite(f"{message}; {fault.words()}", fault)
    return NotFinite(
        f"{message}, though each of {count} views is when it is seen alone: is their sum too large, or does the "
        "encoder mix the images of a batch?"
    )


def one_view(query: Query, i: int, j: int, delta: Tensor | None = None) -> OneView:
    """View j of the i-th image, with its own delta or another one."""
    problem, transforms = query.problem, query.transforms
    which = torch.tensor([i], device=problem.images.device)
    u = (query.u if query.u.dim() == 2 else query.u[i])[j, None]
    if problem.objective.paired:
        with torch.no_grad():
            twin = transforms(scene_of(problem.images[which]), u)
            anchor = problem.encoder(twin, **drawn(transforms, u))
    else:
        anchor = take(problem.anchor, which)
    scene = problem.scene(query.delta_of(i) if delta is None else delta, which)
    return OneView(transforms, scene, u, problem.encoder, lambda features: problem.objective(features, anchor))


def _views(query: Query, bad: Tensor, i: int) -> Iterator[int]:
    yield from bad[i].nonzero()[:, 0].tolist() if bad.dim() == 2 else range(query.u.shape[-2])


def _examined(query: Query, i: int, j: int) -> Fault | None:
    """What is wrong with a view, or None."""
    with torch.no_grad():
        view = one_view(query, i, j)
    trace = traced(view)
    where = broken(trace.lines, view)
    if where is None and query.delta.numel():

        def shown(leaf: list[Tensor]) -> Tensor:
            return query.transforms(one_view(query, i, j, leaf[0]).scene, view.u)

        slope = slope_of(view, [query.delta_of(i)], shown)[0]
        where = None if slope is None or bool(slope.isfinite().all()) else "the gradient of the perturbation"
    return None if where is None else _fault(query, view, trace, where, (i, j))


def _fault(query: Query, view: OneView, trace: ViewTrace, where: str, at: tuple[int, int]) -> Fault:
    pipeline, i = query.transforms, at[0]
    known = isinstance(pipeline, Compose)
    return Fault(
        where=where,
        doing=query.doing,
        step=query.step,
        picture=int(query.rows[i]),
        view=at[1],
        values=pipeline.describe(view.u)[0] if known else {},
        stages=tuple(map(repr, pipeline.stages)) if known else (),
        u=view.u.detach(),
        image=query.problem.images[i, None],
        delta=query.delta_of(i).detach() if query.delta.numel() else None,
        anchor=take(query.problem.anchor, torch.tensor([i], device=query.problem.images.device)),
        shown=layers_of(view.scene),
        size=view.scene.size,
        loss=trace.loss,
        pulled=trace.pulled,
    )
