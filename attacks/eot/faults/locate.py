"""The first view that is not finite, where a loss or a gradient is not; and why a gradient is exactly zero."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attacks.encoders.engine import in_float32
from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import EncoderDraws, encoder_draws
from attacks.encoders.tree import Encoder, Tree, leaves, map_tree, take
from attacks.eot.faults.fault import Fault, Line, NotFinite
from attacks.eot.problem import Problem
from transforms import Compose, audit
from transforms.compose import seen
from transforms.doors import unchecked
from transforms.scene import Scene, Shown, scene_of

PICTURE, ENCODER, OBJECTIVE = "picture", "encoder", "objective"
#: At most so many views are computed alone, and so many audited.
MAX_VALUES, VIEWS = 512, 4
#: The reason of a gradient that is zero because there is nothing left to gain.
AT_END = "the loss is at its end: by the features, its gradient is zero (or the objective itself cuts the graph)"


@dataclass(frozen=True, eq=False)
class OneView:
    """A scene of one picture, seen from `u` (1,dims); `loss` takes the features of the view (a row) to (1,)."""

    transforms: Compose
    scene: Scene
    u: Tensor
    encoder: Encoder
    loss: Callable[[Tree], Tensor]

    def render(self, stages: slice, picture: Shown) -> Tensor:
        offset = sum(stage.dims for stage in self.transforms.stages[: stages.start or 0])
        part = replace(self.transforms, stages=self.transforms.stages[stages])
        return unchecked(part)(picture, self.u[:, offset : offset + part.dims])

    def judge(self, view: Tensor) -> Tensor:
        return self.loss(unchecked(self.encoder)(view, **encoder_draws(self.transforms, self.u)))


def trace_view(view: OneView) -> tuple[tuple[Line, ...], Tensor]:
    """A line for the picture, each stage, the encoder and the objective; and what the encoder sees (1,C,h,w)."""
    transforms, scene, all_stages = view.transforms, view.scene, slice(None)
    stages = zip(transforms.labels, transforms.stages, strict=True)
    names = [label for label, stage in stages if not isinstance(stage, EncoderDraws)]
    with torch.no_grad():
        values = [view.render(slice(count), scene) for count in range(1, len(names) + 1)]
        result = view.render(all_stages, scene)
        features = unchecked(view.encoder)(result, **encoder_draws(transforms, view.u))
        loss = view.loss(features)

    def of_picture(pixels: Sequence[Tensor]) -> Tensor:
        layers = tuple(layer._replace(pixels=part) for layer, part in zip(scene.layers, pixels, strict=True))
        return view.judge(view.render(all_stages, scene._replace(layers=layers)))

    def of_value(count: int, values: Sequence[Tensor]) -> Tensor:
        return view.judge(view.render(slice(count, None), values[0]))

    def of_features(parts: Sequence[Tensor]) -> Tensor:
        iterator = iter(parts)
        return view.loss(map_tree(features, lambda _: next(iterator)))

    stage_values = zip(names, values, strict=True)
    return (
        _line(PICTURE, [layer.pixels for layer in scene.layers], of_picture),
        *(_line(name, [value], partial(of_value, i)) for i, (name, value) in enumerate(stage_values, 1)),
        _line(ENCODER, leaves(features), of_features),
        _line(OBJECTIVE, [loss], lambda losses: losses[0]),
    ), result


def first_fault(lines: Sequence[Line]) -> str | None:
    """Where a value is not finite for the first time on the way to the loss, or else a gradient on the way back."""
    names = {PICTURE: "the picture itself", ENCODER: "the encoder", OBJECTIVE: "the objective"}
    names = {line.name: names.get(line.name, f"stage `{line.name}`") for line in lines}
    for line in lines:
        if line.bad:
            return names[line.name]
    for line, following_line in reversed(list(itertools.pairwise(lines))):
        if line.slope is not None and not math.isfinite(line.slope):
            return f"the gradient of {names[following_line.name]}"
    return None


def slopes(values: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]) -> list[Tensor | None]:
    """The gradient of a loss by some tensors; None where there is none."""
    while True:
        leaves = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in values]
        with torch.enable_grad():
            total = loss(leaves).sum()
        able = [value for value in leaves if value.requires_grad]
        if not total.requires_grad:
            return [None] * len(leaves)
        try:
            gradients = iter(torch.autograd.grad(total, able, allow_unused=True))
        except Overflow:  # the scale is smaller now: try again
            continue
        return [next(gradients) if value.requires_grad else None for value in leaves]


def _line(name: str, values: Sequence[Tensor], loss: Callable[[Sequence[Tensor]], Tensor]) -> Line:
    flat = torch.cat([value.detach().flatten().cpu().double() for value in values])
    finite = flat[flat.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
    back = [slope.detach().flatten().cpu().double() for slope in slopes(values, loss) if slope is not None]
    return Line(name, low, high, len(flat) - len(finite), float(torch.cat(back).norm()) if back else None)


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
    problem, transforms = query.problem, query.transforms
    numbers = torch.tensor([i], device=problem.images.device)
    u = (query.u if query.u.dim() == 2 else query.u[i])[j, None]
    if problem.objective.paired:
        with torch.no_grad():
            twin = unchecked(transforms)(scene_of(problem.images[numbers]), u)
            anchor = unchecked(problem.encoder)(twin, **encoder_draws(transforms, u))
    else:
        anchor = take(problem.anchor, numbers)
    scene = problem.scene(query.delta_of(i), torch.tensor([i]))
    return OneView(transforms, scene, u, problem.encoder, lambda features: problem.objective(features, anchor))


def _examine(query: Query, i: int, j: int) -> Fault | None:
    with torch.no_grad():
        view = one_view(query, i, j)
    lines, view_pixels = trace_view(view)
    place = first_fault(lines)
    if place is None and query.delta.numel():

        def loss(deltas: Sequence[Tensor]) -> Tensor:
            return view.judge(unchecked(query.transforms)(query.problem.scene(deltas[0], torch.tensor([i])), view.u))

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
