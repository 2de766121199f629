"""What an attack solves, and how it is run: two values that every solver takes."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.tree import Encoder, Tree, leaves, length, silence, take
from attacks.eot.adaptive import Adaptive
from attacks.eot.estimator import EOT, check_count
from attacks.eot.minibatches import Minibatches, PictureSource
from attacks.eot.protocols import Adversarial, Constraint, Objective, Optimiser, Penalty, Perturbation, Proposer
from attacks.perturbations.base import PerturbationSet
from transforms import Compose
from transforms.devices import HOST, uploaded
from transforms.doors import PastDoors, formed, made, unchecked
from transforms.draws import Fixed, Grid, stream
from transforms.scene import Scene, scene_of

STEPS = 100
#: The views of a step that are chosen where their number must be the same in all steps: APGD counts steps, a search
#: and fixed draws keep their views, and an adversary chooses among others.
FIXED = 4
#: Those of NES and its like, which are the losses of a step: the former in a run of fewer than MANY queries, which
#: has few steps.
LOSSES, MANY = (10, 20), 1000


def losses_of_a_step(queries: int | Tensor) -> int:
    """How many NES and its like take in a run of so many queries of a picture."""
    return LOSSES[int(torch.as_tensor(queries).max()) >= MANY]


#: Part -> its protocol, the defaults of its members, those without which it is none, and an example.
NEEDS = {
    "objective": (Objective, Objective, ("__call__",), "a loss such as Away()"),
    "optimiser": (Optimiser, Optimiser, ("init", "step"), "one such as PGD()"),
    "perturbation": (Perturbation, PerturbationSet, ("scene",), "a set such as Linf(8 / 255)"),
}


@dataclass(frozen=True, eq=False)
class PartWithDefaults:
    """A part that does not inherit from its protocol, with the defaults of the members that it lacks."""

    part: Any
    protocol: type
    defaults: type

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _has(self.part, name, self.protocol):
            return getattr(self.part, name)
        member = inspect.getattr_static(self.defaults, name, None)
        if member is None or getattr(member, "__isabstractmethod__", False):
            raise AttributeError(f"`{name}` has no default, and {type(self.part).__name__} lacks it: write it")
        return member.__get__(self) if hasattr(member, "__get__") else member

    def __call__(self, *arguments: Any) -> Any:
        return self.part(*arguments)


def complete_part(name: str, part: Any) -> Any:
    """The part of an attack with the defaults of its protocol. Raises ValueError for what is no such part."""
    made(name, part)
    protocol, defaults, needs, example = NEEDS[name]
    if {defaults, Proposer, PartWithDefaults} & {*type(part).__mro__}:
        return part
    if name == "optimiser" and hasattr(part, "direction"):
        protocol, defaults, needs = Proposer, Proposer, ("direction",)
    if not all(_has(part, need, protocol) for need in needs):
        kind = type(part).__name__
        raise ValueError(f"`{name}` must be {example}, or have {' and '.join(needs)}; got a {kind}: give {example}")
    adapter: Any = type(type(part).__name__, (PartWithDefaults,), {})  # errors name the part
    return adapter(part, protocol, defaults)


def _has(part: Any, name: str, protocol: type) -> bool:
    """Whether it has a member, other than the empty one of the protocol."""
    return hasattr(part, name) and getattr(type(part), name, None) is not getattr(protocol, name, part)


@dataclass(frozen=True, eq=False)
class Problem:
    """What the attacker minimises: the objective of an encoder's features, over what a perturbation may change.

    Args:
        images: (N,C,H,W) in [0,1], untouched.
        anchor: what the objective compares with, a row for each image: embeddings (N,D), labels (N,), or a tree.
        encoder: images to features, in evaluation mode.
        objective: features and anchor to losses.
        perturbation: the set of allowed changes.
        first: the delta that a run begins with; None: that of its seed.
        minibatches: what the steps see in place of the images, which then only compare iterates (see `problem_for`).

    Examples:
        >>> from attacks import Away, Linf, Problem, load_encoder, tiles
        >>> encoder, images = load_encoder("pocket"), tiles(128).images[:2]
        >>> problem = Problem(images, encoder(images), encoder, Away(), Linf(8 / 255))
        >>> problem.constraint.perturbation.eps == 8 / 255
        True
    """

    images: Tensor
    anchor: Tree
    encoder: Encoder
    objective: Objective
    perturbation: Perturbation
    first: Tensor | None = None
    minibatches: Minibatches | None = None
    _encode: Encoder = field(init=False, repr=False)  # of pictures that were checked
    _is_asked: bool = field(init=False, repr=False)  # a black box, which may not answer

    def __post_init__(self) -> None:
        formed(self.images)
        made("encoder", self.encoder)
        for name in ("objective", "perturbation"):
            object.__setattr__(self, name, complete_part(name, getattr(self, name)))
        object.__setattr__(self, "encoder", in_native_precision(self.encoder))
        object.__setattr__(self, "_encode", unchecked(self.encoder))
        object.__setattr__(self, "_is_asked", silence(self.encoder, self.images) is not None)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shared(self) -> bool:
        return self.perturbation.shared

    @property
    def constraint(self) -> Constraint:
        return Constraint(self.perturbation, self.images)

    def take(self, rows: Tensor) -> "Problem":
        if len(rows) == len(self.images):  # rows are always in order
            return self
        part = self.perturbation.take(rows)
        first = self.first if self.first is None or self.shared else self.first[rows]
        columns: dict[str, Any] = {"images": self.images[rows], "anchor": take(self.anchor, rows), "first": first}
        return replace(self, **columns, perturbation=part, minibatches=None)

    def minibatch(self, seed: int, step: int) -> "Problem":
        """What a step sees: this, or as many other pictures."""
        parts = self.minibatches
        return self if parts is None else replace(self, **parts.fields(parts.rows(seed, step)), minibatches=None)

    def scene(self, delta: Tensor, numbers: Tensor) -> Scene:
        """The attacked images `numbers` (B,), on the host, with a delta of each (B,...), or one (1,...) for all."""
        if numbers.device == HOST and torch.equal(numbers, torch.arange(len(self.images))):  # saves a copy
            return self.perturbation.scene(self.images, delta)
        return self.perturbation.take(numbers).scene(self.images[uploaded(numbers, self.images.device)], delta)

    def losses(self, transforms: Compose, delta: Tensor, numbers: Tensor, u: Tensor) -> Tensor:
        """The losses (B*V,) of the attacked images `numbers` (B,), with a delta of each (B,...), or one (1,...) that
        all share, each seen from V of the views `u` (B*V,dims) in turn. A paired objective sees the untouched images
        from them, with a gradient only where `u` asks for one."""
        draws = encoder_draws(transforms, u)
        with PastDoors():
            views = unchecked(transforms)(self.scene(delta, numbers), u)
            if self.objective.paired:
                with torch.set_grad_enabled(torch.is_grad_enabled() and u.requires_grad):
                    clean = scene_of(self.images[uploaded(numbers, self.images.device)])
                    anchor = self._encode(unchecked(transforms)(clean, u), **draws)
                if self._is_asked:
                    anchor = self._with_answers(anchor, numbers)
            else:
                anchor = take(self.anchor, numbers.repeat_interleave(len(u) // len(numbers)))
            features = self._encode(views, **draws)
            if self._is_asked:
                features = self._with_answers(features, numbers)
            losses = self.objective(features, anchor)
        if losses.shape != (len(u),):
            name = type(self.objective).__name__
            raise ValueError(f"objective {name} must return one loss a view, ({len(u)},); got {tuple(losses.shape)}")
        return losses

    def _with_answers(self, features: Tree, numbers: Tensor) -> Tree:
        """The features; a view without an answer has those of the untouched image, so that no attack gains by it."""
        missing = silence(self.encoder, features)
        if missing is None or not bool(missing.any()):
            return features
        assert isinstance(features, Tensor)
        rows = uploaded(numbers.repeat_interleave(len(features) // len(numbers)), missing.device)[missing]
        return features.index_put((missing,), self._encode(self.images[rows.to(self.images.device)]))

    def members(self) -> "Iterator[Problem]":
        """The problems whose gradients the objective wants combined; none for most objectives."""
        for encoder, objective, anchor in self.objective.members(self.encoder, self.anchor):
            yield replace(self, encoder=encoder, objective=objective, anchor=anchor)


@dataclass(frozen=True, eq=False)
class Options:
    """How a problem is solved.

    Args:
        optimiser: moves the perturbation; a `Proposer` needs no gradient.
        eot: the estimator of the expected loss; every process of its `world` yields the same steps.
        steps: gradient steps, at most, each of `eot.views` encoder passes for each image, or a multiple. Where
            `eot.views` is None they are chosen as by `attack.views=auto`: one a step, and from 256 gradients on as
            many as their noise asks for, within `steps` gradients (or the budget) in all.
        seed: of the start and of the views. The same seed gives the same bits on the same machine.
        budget: the most encoder passes for each image, one number or (N,); None for no limit.
        adaptive: chooses how many times `eot.views` views a step has; needs a budget, and one number for images that
            share a perturbation.
        penalty: a price on the look of the perturbation, added to the risk.
        adversary: chooses the views of each step to the attacker's harm; not with `adaptive`.

    Examples:
        >>> from attacks import EOT, PGD, Options
        >>> options = Options(PGD(), EOT(views=4), steps=10)
        >>> options.eot.views, options.seed
        (4, 0)
    """

    optimiser: Optimiser | Proposer
    eot: EOT
    steps: int = STEPS
    seed: int = 0
    budget: int | Tensor | None = None
    adaptive: Adaptive | None = None
    penalty: Penalty | None = None
    adversary: Adversarial | None = None

    def __post_init__(self) -> None:
        for name in ("eot", "adaptive", "penalty", "adversary"):
            made(name, getattr(self, name))
        object.__setattr__(self, "optimiser", complete_part("optimiser", self.optimiser))
        eot: Any = self.eot
        if not isinstance(eot, EOT):
            write = "EOT(camera)" if isinstance(eot, Compose) else f"EOT(Compose([{eot!r}]))"
            raise ValueError(f"`eot` must be an EOT, such as EOT(camera); got {eot!r}: write {write}")
        check_count("steps", self.steps, "steps")
        views: Any = eot.views
        if views is None:
            self._choose_views()
        if eot.pictures is not None:
            self._check_pictures()

    def _check_pictures(self) -> None:
        optimiser = type(self.optimiser).__name__
        if self.optimiser.gradient_free or self.optimiser.counts_steps:
            raise ValueError(
                f"`pictures` must be None where losses of several steps are compared, as {optimiser} does, for they "
                f"would be of different pictures; got {self.eot.pictures}: leave it out, or take Wiener() or PGD()"
            )
        if self.adaptive is not None or isinstance(self.budget, Tensor):
            name = "budget" if self.adaptive is None else "adaptive"
            raise ValueError(
                f"`{name}` is about pictures that are in all steps, and a step has {self.eot.pictures} of them: give "
                "a fixed number of `views` and of `steps`, or leave `pictures` out"
            )

    def _choose_views(self) -> None:
        """The views of a step that `eot` leaves open: one, and more in a long attack, where they may differ."""
        eot, by_losses = self.eot, self.optimiser.gradient_free and not hasattr(self.optimiser, "direction")
        constant = self.optimiser.gradient_free or self.optimiser.counts_steps
        constant = constant or isinstance(eot.draws, Fixed | Grid) or self.adversary is not None
        views = FIXED if constant and eot.transforms.dims else 1
        if by_losses:
            views = losses_of_a_step(self.steps * LOSSES[0] if self.budget is None else self.budget)
        object.__setattr__(self, "eot", replace(eot, views=views))
        constant = constant or eot.pictures is not None  # more views of them would not show the noise of the others
        free = not constant and eot.transforms.dims and self.adaptive is None and not isinstance(self.budget, Tensor)
        total = self.steps * views if self.budget is None else self.budget
        if free and total >= 2 * Adaptive().steps:  # in a shorter one every step has one
            object.__setattr__(self, "adaptive", Adaptive())
            object.__setattr__(self, "budget", total)


def problem_for(
    images: Tensor | PictureSource,
    anchor: Tree,
    encoder: Encoder,
    objective: Objective,
    perturbation: Perturbation,
    options: Options,
) -> Problem:
    """The problem of all `images`; where a step sees `options.eot.pictures` of more, that of as many, drawn by the
    seed, on which iterates are compared. What is no tensor is read when it is seen, onto the anchor's device."""
    is_tensor, size = not hasattr(images, "read"), options.eot.pictures
    if is_tensor and size is None:
        return Problem(images, anchor, encoder, objective, perturbation)  # type: ignore[arg-type]
    if size is not None and not perturbation.shared:
        raise ValueError(
            f"`pictures` needs a perturbation that images share, such as Universal(Linf(8 / 255)); got {size} for a "
            f"{type(perturbation).__name__}: leave it out"
        )
    count = len(images)
    if length(anchor) != count:
        raise ValueError(f"`anchor` must hold one row per image; got {length(anchor)} for {count} images: embed all")
    device = images.device if isinstance(images, Tensor) else leaves(anchor)[0].device
    parts = Minibatches(images, anchor, perturbation, min(size or count, count), device)
    rows = torch.arange(count) if parts.size == count else parts.rows(stream(options.seed, "select"), 0)
    rest = None if parts.size == count else parts
    return Problem(encoder=encoder, objective=objective, minibatches=rest, **parts.fields(rows))
