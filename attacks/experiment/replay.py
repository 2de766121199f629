"""A view of a run, seen again from the run's directory.

A view that was not finite is held by a file (see `attacks.eot.faults`). `attacks.experiment.replay` makes any other
one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from attacks.encoders.description import MODULE
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.randomness import drawn, randomised
from attacks.encoders.tree import Encoder, Tree, leaves, take
from attacks.eot.estimator import EOT
from attacks.eot.faults import fault
from attacks.eot.faults.certain import Looks, one_view
from attacks.eot.faults.traced import OneView
from attacks.experiment.batch import Unit, part_of
from attacks.experiment.build.encoder import subject
from attacks.experiment.build.objective import aim, wants_gallery, watched
from attacks.experiment.build.parts import Parts, build, device
from attacks.experiment.build.pipeline import pipeline
from attacks.experiment.build.printer import fixed, laid
from attacks.experiment.directory import Earlier, earlier, refuse_program
from attacks.experiment.embeddings import embedded
from attacks.objectives.aim import Known
from attacks.schema import groups
from attacks.schema.validate import Run
from attacks.solvers.search import gradient_free
from transforms import Compose, scene_of, stream, widened


@dataclass(frozen=True, eq=False)
class Again:
    """A view as it can be looked at (see `attacks.eot.faults.traced`), what it is, its coordinates in physical
    values, and what a reader must know. `where` is where it was not finite in the run, if it is of a fault."""

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


class Named(NamedTuple):
    """A view of a run by numbers that count from 0: the step, the view in it, and the picture among the run's."""

    step: int
    view: int
    picture: int


@contextmanager
def of_run(folder: Path, named: Named, where: str = "auto", program: str | None = None) -> Iterator[Again]:
    """A view that the attack of a finished run has seen. Arguments and errors as `of_fault`."""
    before = rebuildable(folder, program)
    run = before.run
    _refuse(run, named)
    run.engine.device = where
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # a folder to write to
    parts = build(run)
    if not 0 <= named.picture < len(parts.queries):
        raise ValueError(f"`--picture` must be one of 0 to {len(parts.queries) - 1}; got {named.picture}")
    delta = _saved(folder, parts, named.picture).to(parts.device)
    u = _points(folder, run, parts, named)
    mine = part_of(parts, [named.picture])
    images = mine.queries.images.to(parts.device)
    with watched(parts.encoder, run.objective) as module:
        encoder = as_run(module, before)
        goal = aim(run.objective, _known(run, mine, images), module, mine.transforms, run.seed)
        paired = getattr(goal.objective, "paired", False)
        looks = Looks(
            doing="attack",
            transforms=mine.transforms,
            u=u,
            encoder=encoder,
            objective=goal.objective,
            scene=lambda part, _: mine.perturbation.scene(images, part),
            anchor=lambda which: take(goal.anchor, which),
            images=images,
            rows=torch.zeros(1, dtype=torch.long),
            delta=delta,
            twin=(lambda _: scene_of(images)) if paired else None,
        )
        with torch.no_grad():
            view = one_view(looks, 0, 0)
        yield Again(
            view=view,
            title=f"arm eot, step {named.step}, view {named.view} of {mine.queries.names[0]}",
            values=mine.transforms.describe(u)[0],
            notes=(
                "with the perturbation that the run has written (perturbation.safetensors): that of the step itself "
                "is not kept",
            ),
        )


def _refuse(run: Run, named: Named) -> None:
    attack = run.attack
    if isinstance(attack, groups.SuiteConfig):
        raise ValueError("`attack=suite` is several attacks; only the views of a single one can be made again")
    if attack.adversary is not None:
        raise ValueError("`attack.adversary` has chosen the views by a perturbation that is not kept")
    if not 0 <= named.step < attack.steps:
        raise ValueError(
            f"`--step` must be one of 0 to {attack.steps - 1} (of the first start, if there were several); got "
            f"{named.step}"
        )


def _points(folder: Path, run: Run, parts: Parts, named: Named) -> Tensor:
    """The coordinates (1,dims) of a view, as `attacks.solvers.loop` draws them."""
    batch, shared = run.evaluate.batch, parts.perturbation.shared
    size = len(parts.queries) if batch is None or shared else min(batch, len(parts.queries))
    number = named.picture // size
    unit = Unit(number * size, min((number + 1) * size, len(parts.queries)), number)
    eot, own = EOT(parts.transforms, parts.draws, n=run.attack.views), None
    drawn_before, times = _blocks(folder, run, named.step, number)
    if not 0 <= named.view < times * eot.n:
        raise ValueError(f"`--view` must be one of 0 to {times * eot.n - 1} in step {named.step}; got {named.view}")
    if shared:
        own = unit.stop - unit.start
    if gradient_free(parts.optimiser):
        drawn_before, own = 0, None
    seed = stream(stream(unit.seed(run.seed), "eot"), "attack")
    points = eot.points(seed, drawn_before, parts.queries.images.to(parts.device), times=times, pictures=own)
    return (points if own is None else points[named.picture - unit.start])[named.view, None]


def _blocks(folder: Path, run: Run, step: int, number: int) -> tuple[int, int]:
    """How many blocks of views were drawn before a step, and how many in it."""
    if getattr(run.attack, "cosine", None) is None:
        return step, 1
    lines = [line.split(",") for line in (folder / "steps.csv").read_text(encoding="utf-8").splitlines()]
    rows = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    views = [int(row["views"]) for row in rows if row["arm"] == "eot" and int(row["batch"]) == number]
    if step >= len(views):
        raise ValueError(f"`--step` must be one of 0 to {len(views) - 1}: the budget was spent then; got {step}")
    return sum(views[:step]) // run.attack.views, views[step] // run.attack.views


def _saved(folder: Path, parts: Parts, picture: int) -> Tensor:
    """The perturbation (1,...) of a picture, as the run has written it."""
    path = folder / "perturbation.safetensors"
    try:
        found = load_file(path)["eot"]
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"`{path}` cannot be read ({error}): is the run finished?") from None
    if len(found) == 1:
        return found
    if len(found) != len(parts.queries):
        raise ValueError(
            f"`{path}` holds {len(found)} perturbations for {len(parts.queries)} pictures: some have failed"
        )
    return found[picture, None]


def _known(run: Run, mine: Parts, images: Tensor) -> Known:
    """What is known of one picture; the gallery is embedded where the objective asks for it."""
    with torch.no_grad():
        own: Any = mine.encoder(images)
    if not wants_gallery(run.objective):
        return Known(images, own, own, torch.zeros(1, dtype=torch.long, device=own.device), None)
    rows = embedded(mine.gallery, mine.encoder, mine.device, Decision().chunk).rows
    return Known(images, own, rows, mine.truth, mine.goal, mine.gallery.identity)
