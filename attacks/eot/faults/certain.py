"""A loss or a gradient is finite, or the attack stops and says which view began it.

Nothing is looked at twice while all is well. Once something is not finite, views are taken one by one, until one
shows it alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.encoders.engine.fallback import in_float32, safely
from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Encoder, Tree, take
from attacks.eot.estimate import Estimate
from attacks.eot.estimator import MakeScene, MakeTwin
from attacks.eot.faults.fault import Fault, NotFinite, layers_of
from attacks.eot.faults.traced import OneView, Trace, broken, slope_of, traced
from attacks.eot.protocols import Objective, Perturbation, among
from transforms import Compose, Scene, scene_of

#: Views that are looked at alone, at most.
MOST = 512
#: No delta: a bank's pictures are as their files hold them.
NONE = torch.zeros(0)


@dataclass(frozen=True, eq=False)
class Looks:
    """What was asked of an encoder: pictures `rows` (N,) of an attack or a bank, seen from `u` (n,dims), or each from
    its own (N,n,dims); `scene` and `twin` as `EOT.estimate` has them, `anchor` by picture."""

    doing: str
    transforms: Compose
    u: Tensor
    encoder: Encoder
    objective: Objective
    scene: MakeScene
    anchor: Callable[[Tensor], Tree]
    images: Tensor  # of which the `rows` are these pictures, as they were before
    rows: Tensor
    delta: Tensor = NONE
    twin: MakeTwin | None = None
    step: int | None = None


def looks_of(
    delta: Tensor,
    images: Tensor,
    anchor: Tree,
    rows: Tensor,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    transforms: Compose,
    u: Tensor,
    step: int,
) -> Looks:
    """What a step of an attack asks of the encoder, for some of its pictures."""

    def scene(part: Tensor, which: Tensor) -> Scene:
        own = among(perturbation, rows[which]) if perturbation.shared else perturbation
        return own.scene(images[rows[which]], part)

    def twin(which: Tensor) -> Scene:
        return scene_of(images[rows[which]])

    return Looks(
        doing="attack",
        transforms=transforms,
        u=u,
        encoder=encoder,
        objective=objective,
        scene=scene,
        anchor=lambda which: take(anchor, rows[which]),
        images=images,
        rows=rows,
        delta=delta if perturbation.shared else delta[rows],
        twin=twin if getattr(objective, "paired", False) else None,
        step=step,
    )


def certain(looks: Looks, estimate: Callable[[], Estimate]) -> Estimate:
    """An estimate that is finite: in float32, if it is not so in a lower precision. Raises NotFinite."""
    found = safely(looks.encoder, estimate, _finite)
    if not _finite(found):
        bad = ~(found.mean.isfinite() & found.value.isfinite())
        if len(found.grad) == len(bad):
            bad = bad | ~found.grad.flatten(1).isfinite().all(1)
        with in_float32(looks.encoder):
            raise located(looks, bad)
    return found


def certain_losses(looks: Looks, run: Callable[[], Tensor]) -> Tensor:
    """The same of losses (N,V) alone."""
    found = safely(looks.encoder, run, lambda losses: bool(losses.isfinite().all()))
    if not bool(found.isfinite().all()):
        with in_float32(looks.encoder):
            raise located(looks, ~found.isfinite())
    return found


def _finite(found: Estimate) -> bool:
    return all(bool(each.isfinite().all()) for each in (found.mean, found.value, found.grad))


def located(looks: Looks, bad: Tensor) -> NotFinite:
    """The first view that is not finite when it is seen alone, among the pictures `bad` (N,), or the views (N,V);
    where none is, among all."""
    pictures = (bad if bad.dim() == 1 else bad.any(1)).nonzero()[:, 0].tolist() or range(len(looks.rows))
    chosen = ((i, j) for i in pictures for j in _views(looks, bad, i))
    at = "" if looks.step is None else f"step {looks.step}: "
    said = f"{at}the loss or its gradient is not finite for image(s) {[int(looks.rows[i]) for i in pictures]}"
    count = 0
    for i, j in itertools.islice(chosen, MOST):
        count += 1
        fault = _looked(looks, i, j)
        if fault is not None:
            return NotFinite(f"{said}; {fault.words()}", fault)
    return NotFinite(
        f"{said}, though each of {count} views is when it is seen alone: is their sum too large, or does the encoder "
        "mix the pictures of a batch?"
    )


def _views(looks: Looks, bad: Tensor, i: int) -> Iterator[int]:
    if bad.dim() == 2:
        yield from bad[i].nonzero()[:, 0].tolist()
    else:
        yield from range(looks.u.shape[-2])


def one_view(looks: Looks, i: int, j: int, delta: Tensor | None = None) -> OneView:
    """View j of the i-th picture, with its own delta or another."""
    which = torch.tensor([i], device=looks.images.device)
    u = (looks.u if looks.u.dim() == 2 else looks.u[i])[j, None]
    own = _delta(looks, i) if delta is None else delta
    beside = looks.anchor(which)
    if looks.twin is not None:
        with torch.no_grad():
            twin = looks.transforms(looks.twin(which), u)
            beside = looks.encoder(twin, **drawn(looks.transforms, u))
    scene = looks.scene(own, which)
    return OneView(looks.transforms, scene, u, looks.encoder, lambda features: looks.objective(features, beside))


def _delta(looks: Looks, i: int) -> Tensor:
    return looks.delta[i, None] if len(looks.delta) > 1 else looks.delta


def _looked(looks: Looks, i: int, j: int) -> Fault | None:
    """What is wrong with a view, or None."""
    with torch.no_grad():
        view = one_view(looks, i, j)
    trace = traced(view)
    where = broken(trace.lines, view)
    if where is None and looks.delta.numel():

        def shown(leaf: list[Tensor]) -> Tensor:
            return looks.transforms(one_view(looks, i, j, leaf[0]).scene, view.u)

        slope = slope_of(view, [_delta(looks, i)], shown)[0]
        where = None if slope is None or bool(slope.isfinite().all()) else "the gradient of the perturbation"
    return None if where is None else _fault(looks, view, trace, where, i, j)


def _fault(looks: Looks, view: OneView, trace: Trace, where: str, i: int, j: int) -> Fault:
    pipeline = looks.transforms
    known = isinstance(pipeline, Compose)
    which = torch.tensor([i], device=looks.images.device)
    return Fault(
        where=where,
        doing=looks.doing,
        step=looks.step,
        picture=int(looks.rows[i]),
        view=j,
        values=pipeline.describe(view.u)[0] if known else {},
        stages=tuple(map(repr, pipeline.stages)) if known else (),
        u=view.u.detach(),
        image=looks.images[looks.rows[i], None],
        delta=_delta(looks, i).detach() if looks.delta.numel() else None,
        anchor=looks.anchor(which),
        shown=layers_of(view.scene),
        size=view.scene.size,
        loss=trace.loss,
        pulled=trace.pulled,
    )
