"""A view of a run, seen again from the run's directory.

A view that was not finite is held by a file (see `attacks.eot.faults`). `attacks.replay_run` makes any other one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.engine import Decision, prepare
from attacks.encoders.randomness import drawn, randomised
from attacks.encoders.tree import Tree, leaves
from attacks.eot.faults import fault
from attacks.eot.faults.traced import OneView
from attacks.eot.protocols import Encoder
from attacks.experiment.build.encoder import MODULE, subject
from attacks.experiment.build.objective import watched
from attacks.experiment.build.parts import device
from attacks.experiment.build.pipeline import pipeline
from attacks.experiment.directory import Earlier, earlier, refuse_program
from attacks.laying import fixed, laid
from attacks.schema.validate import Run
from transforms import Compose, widened


@dataclass(frozen=True, eq=False)
class Again:
    """A view as it can be looked at (see `attacks.eot.faults.traced`), what it is, its coordinates in physical values,
    and what a reader must know. `where` is where it was not finite in the run, if it is of a fault."""

    view: OneView
    title: str
    values: dict[str, float]
    notes: tuple[str, ...] = ()
    where: str | None = None


@contextmanager
def of_fault(path: Path, where: str = "auto", program: str | None = None) -> Iterator[Again]:
    """The view that a run stopped at, from its file; the run's manifest.json lies beside it.

    Args:
        where: the device.
        program: the encoder, where it is one; whoever starts this names it.

    Raises:
        FileNotFoundError, ValueError: in one line.
    """
    found, before = fault.read(path), rebuildable(path.parent, program)
    run, at = before.run, device(where)
    module = subject(run.encoder, at, run.defence)
    transforms = laid(pipeline(run.transforms), run.printer, run.perturbation)
    transforms = _same(randomised(transforms, module) if run.encoder.stochastic else transforms, found, run)
    try:
        scene, u = found.scene(), found.u
        picture = scene.layers[0].pixels
        if u.shape != (1, transforms.dims) or picture.dim() != 4 or len(picture) != 1:
            raise ValueError(f"it holds {tuple(u.shape)} coordinates of a picture {tuple(picture.shape)}")
        moved = scene._replace(
            layers=tuple(
                layer._replace(
                    pixels=layer.pixels.to(at),
                    pull=layer.pull.to(at),
                    alpha=None if layer.alpha is None else layer.alpha.to(at),
                )
                for layer in scene.layers
            )
        )
        with watched(module, run.objective) as inside, torch.no_grad():
            shown = transforms(moved, u.to(at))
            own = drawn(transforms, u.to(at))
            fits = _shapes(inside(shown, **own)) == [each.shape for each in found.pulled]
    except (TypeError, AttributeError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"`{path}` does not hold a view of this run: {' '.join(str(error).split())}") from None
    with watched(module, run.objective) if fits else _plain(module) as inside:
        pulled = tuple(each.to(at) for each in found.pulled)

        def loss(features: Tree) -> Tensor:
            if _shapes(features) != [each.shape for each in pulled]:
                raise ValueError(f"`{path}`: the encoder's features have other shapes than in the run")
            kept: Tensor = _Kept.apply(found.loss.to(at), pulled, *leaves(features))
            return kept

        yield Again(
            view=OneView(transforms, moved, u.to(at), as_run(inside, before), loss),
            title=f"{found.doing}{'' if found.step is None else f', step {found.step}'}, view {found.view} of image "
            f"{found.picture} of its batch",
            values=found.values,
            notes=(
                "loss and its slope by the features are those that the run has kept",
                "in float32, as any lower precision had been given up",
            ),
            where=found.where,
        )


def rebuildable(folder: Path, program: str | None) -> Earlier:
    """A run whose encoder its directory can name. Raises as `of_fault`."""
    found = earlier(folder)
    node = found.run.encoder
    if node.name == MODULE:
        raise ValueError("`encoder` was a module in memory, and a directory cannot hold it: replay it from Python")
    refuse_program(found.run, program, f"--encoder-code {getattr(node, 'model', None)}")
    return found


def as_run(module: nn.Module, before: Earlier) -> Encoder:
    """The encoder as the engine ran it, but in float32 and not compiled."""
    try:
        decision = Decision.from_dict(before.manifest["engine"]["decision"])
    except (KeyError, TypeError, ValueError):
        decision = Decision()
    return prepare(module, replace(decision, precision="float32", compile=False))


class _Kept(torch.autograd.Function):
    """A loss that is known, and its gradient by the features."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, pulled: tuple[Tensor, ...], *features: Tensor) -> Tensor:  # noqa: ARG004
        ctx.pulled = pulled
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(grads[0] * slope for slope in ctx.pulled)


@contextmanager
def _plain(module: nn.Module) -> Iterator[nn.Module]:
    yield module


def _shapes(features: Tree) -> list[torch.Size]:
    return [leaf.shape for leaf in leaves(features)]


def _same(whole: Compose, found: fault.Fault, run: Run) -> Compose:
    """The pipeline that the view went through: the run's, or one that an arm or a bank makes of it."""
    less = (replace(whole, stages=[*whole.stages[:i], *whole.stages[i + 1 :]]) for i in range(len(whole.stages)))
    made: list[Callable[[], Compose]] = [lambda: whole, lambda: fixed(whole)]
    made += [lambda: widened(whole, run.evaluate.wide)] if whole.dims and run.evaluate.wide > 1 else []
    for each in (*(make() for make in made), *less):
        if tuple(map(repr, each.stages)) == tuple(found.stages):
            return each
    raise ValueError(
        f"the stages of the view, {', '.join(map(str, found.stages)) or 'none'}, are none that the run's "
        "configuration gives: was it of a sanity check, or of another version?"
    )
