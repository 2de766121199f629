"""The first view that is not finite, where a loss or a gradient is not; and why a gradient is exactly zero."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.engine import in_float32
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.tree import leaves, take
from attacks.eot.faults.fault import Fault, NotFinite
from attacks.eot.faults.trace import ENCODER, OneView, first_fault, slopes, trace_view
from attacks.eot.problem import Problem
from transforms import Compose, audit
from transforms.compose import seen
from transforms.doors import unchecked
from transforms.scene import Scene, scene_of

#: At most so many views are computed alone, and so many audited.
MAX_VALUES, VIEWS = 512, 4
#: The reason of a gradient that is zero because there is nothing left to gain.
AT_END = "the loss is at its end: by the features, its gradient is zero (or the objective itself cuts the graph)"


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


def not_finite(query: Query, bad: Tensor) -> NotFinite:
    """The error for the first view that is not finite when it is seen alone, in float32: among the images `bad` (N,),
    or the views `bad` (N,V); where there is none, among all."""
    images = (bad if bad.dim() == 1 else bad.any(1)).nonzero()[:, 0].tolist() or range(len(query.problem))
    at = "" if query.step is None else f"step {query.step}: "
    message = f"{at}the loss or its gradient is not finite for image(s) {[int(query.rows[i]) for i in images]}"
    count = 0
    with in_float32(query.problem.encoder):
        views_mask = torch.ones(query.u.shape[-2], dtype=torch.bool)
        pairs = ((i, j) for i in images for j in (bad[i] if bad.dim() == 2 else views_mask).nonzero()[:, 0].tolist())
        for count, (i, j) in enumerate(itertools.islice(pairs, MAX_VALUES), 1):  # noqa: B007
            fault = _examine(query, i, j)
            if fault is not None:
                return NotFinite(f"{message}; {fault.sentence()}", fault)
    return NotFinite(
        f"{message}, though each of {count} views is when it is seen alone: is their sum too large, or does the "
        "encoder mix the images of a batch?"
    )


def one_view(query: Query, i: int, j: int) -> OneView:
    """View j of the i-th image."""
    problem, transforms = query.problem, query.transforms
    numbers = torch.tensor([i], device=problem.images.device)
    u = (query.u if query.u.dim() == 2 else query.u[i])[j, None]
    if problem.objective.paired:
        with torch.no_grad():
            twin = unchecked(transforms)(scene_of(problem.images[numbers]), u)
            anchor = unchecked(problem.encoder)(twin, **encoder_draws(transforms, u))
    else:
        anchor = take(problem.anchor, numbers)
    scene = _scene(query, i, query.delta_of(i))
    return OneView(transforms, scene, u, problem.encoder, lambda features: problem.objective(features, anchor))


def _scene(query: Query, i: int, delta: Tensor) -> Scene:
    return query.problem.scene(delta, torch.tensor([i]))


def _examine(query: Query, i: int, j: int) -> Fault | None:
    """What is wrong with a view, or None."""
    with torch.no_grad():
        view = one_view(query, i, j)
    lines, view_pixels = trace_view(view)
    place = first_fault(lines)
    if place is None and query.delta.numel():

        def loss(own: Sequence[Tensor]) -> Tensor:
            return view.judge(unchecked(query.transforms)(_scene(query, i, own[0]), view.u))

        (slope,) = slopes([query.delta_of(i)], loss)
        place = None if slope is None or bool(slope.isfinite().all()) else "the gradient of the perturbation"
    if place is None:
        return None
    values, picture = query.transforms.describe(view.u)[0], int(query.rows[i])
    return Fault(place, query.doing, query.step, picture, j, values, view.u.detach(), lines, view_pixels.detach())


def why_silent(query: Query, row: int) -> str:
    """Why the gradient of image `row` is zero (of the first one, where all share a delta), as text."""
    with torch.no_grad():
        views = [one_view(query, row, j) for j in range(min(VIEWS, query.u.shape[-2]))]
    slopes = [line.slope for view in views for line in trace_view(view)[0] if line.name == ENCODER]
    if not any(slopes):
        return AT_END

    def features(images: Tensor) -> Tensor:
        return torch.cat([leaf.flatten(1) for leaf in leaves(unchecked(query.problem.encoder)(images))], dim=1)

    picture = seen(views[0].scene)[:1].detach().clamp(0, 1)
    try:
        stages = audit(query.transforms, picture, features, draws=VIEWS).stages
    except ValueError as error:
        return f"the loss has a gradient by the features, and the audit cannot look further: {error}"
    dead = next((stage for stage in stages if stage.dead), None)
    if dead is None:
        return (
            "every stage and the encoder pass a gradient on, so no view shows what may be changed, or the loss is "
            "flat there"
        )
    if dead is stages[-1]:
        return f"every stage passes a gradient on, and the encoder cuts it: {dead.dead}"
    return f"the gradient dies in the stage {dead.name}: {dead.dead}"
