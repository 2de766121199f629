"""The gradient of encoder and objective on fixed views, against the loss's real changes.

Small differences show whether the gradient is the slope. They are exact, and blind to ripples: the slope of x + 0.03
sin(400 x) is right, and leads nowhere (a shattered gradient, Athalye et al. 2018). So visible changes are always
compared too, and they alone judge a step function, such as an encoder that rounds on purpose. Both compare directions
only. The length of a gradient is a check of its own, because attacks normalise their steps."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.passes import CountedCalls, PassCount
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.request import with_seed
from attacks.encoders.tree import Encoder, Tree, leaves, map_tree, take
from attacks.eot.protocols import Objective
from attacks.evaluation.sanity.check import Check, error_text, rule, skip
from attacks.evaluation.sanity.short_attack import ShortAttack
from transforms.compose import view
from transforms.doors import PastDoors
from transforms.draws import stream
from transforms.scene import scene_of

#: The name of the check whether two answers agree, and their largest relative difference (half precision rounds to
#: less).
REPEATS, REPEAT_ERROR = "same answer twice", 1e-2
#: Views of each picture on which the gradient is compared with real changes.
PROBES = 4
#: Why none of these checks is made.
NO_GRADIENT = "not applicable: the encoder can only be asked, once for each picture, and has no gradient"
#: The names of the checks, and the number of random directions of each view, small and visible.
SLOPES, LENGTH, CHANGES = "finite differences", "gradient scale", "visible changes"
NEAR, FAR = 3, 24
#: Half the distance of the two points of a difference, by dtype, and that of a visible change. In float64 hardly any
#: value crosses a step of a step function by chance.
SMALL = {torch.float64: 1e-10, torch.float32: 1e-3}
VISIBLE = 4 / 255
#: A step function has slopes that differ by more than UNSTEADY at a quarter of the distance, or that are below FLAT
#: times the rounding of the loss.
UNSTEADY, FLAT = 0.5, 10
#: The lowest cosine of slopes and small differences, and of slopes and visible changes. A visible change crosses
#: kinks and steps: a coarse step function with the right gradient has 0.4 to 0.8, one with a wrong gradient none, and
#: ripples have theirs over their root mean square.
EXACT, AGREE = 0.8, 0.25
#: The largest factor between the length of the gradient and that of the real slope.
FACTOR = 1.25

Loss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Probe:
    """What a gradient is looked at on: `views` (R,3,h,w) in [0,1], the encoder's input; the same of the `untouched`
    pictures; the `anchor`, with a row for each view; the objective; the `seed` of the directions; and further
    arguments of the encoder, its `draws`."""

    views: Tensor
    untouched: Tensor
    anchor: Tree
    objective: Objective
    seed: int = 0
    draws: dict[str, Any] = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> "Probe":
        """The same in another dtype, a little off the bounds of [0,1]."""
        views, clean = (0.98 * part.to(dtype) + 0.01 for part in (self.views, self.untouched))
        anchor = map_tree(self.anchor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)
        return replace(self, views=views, untouched=clean, anchor=anchor)

    def loss(self, encoder: Encoder) -> Loss:
        """Views to their losses (R,)."""
        with torch.no_grad(), PastDoors():
            reference = encoder(self.untouched, **self.draws) if self.objective.paired else self.anchor

        def loss(pixels: Tensor) -> Tensor:
            with PastDoors():  # moved pixels may leave [0,1]
                return self.objective(encoder(pixels, **self.draws), reference)

        return loss


def differences(test: ShortAttack, module: nn.Module | None) -> list[Check]:
    """Whether the encoder repeats its answer, and its gradient agrees with real changes, on some views with noise."""
    if module is not None and black_box(module) is not None:
        return [skip(name, NO_GRADIENT) for name in (REPEATS, SLOPES, LENGTH, CHANGES)]
    perturbation, transforms, u = test.problem.perturbation, test.options.eot.transforms, test.judges.u[:PROBES]
    start = perturbation.noise(test.images, torch.Generator().manual_seed(stream(test.options.seed, "probe")))
    pictures = torch.arange(len(test.images)).repeat_interleave(len(u))
    with torch.no_grad():
        scenes = (perturbation.scene(test.images, start), scene_of(test.images))
        views, clean = (view(transforms, scene, u) for scene in scenes)
    draws = encoder_draws(transforms, u.repeat(len(test.images), 1))
    checks: list[Check] = []
    try:
        repeat, encoder = repeats(test.problem.encoder, views, draws)
        checks.append(repeat)
        if encoder is None:
            names = (SLOPES, LENGTH, CHANGES)
            return [repeat, *(skip(name, "the encoder's answers cannot be repeated") for name in names)]
        anchor, seed = take(test.problem.anchor, pictures), stream(test.options.seed, "directions")
        probe = Probe(views, clean, anchor, test.problem.objective, seed, draws)
        module = module if repeat.verdict == "passed" else None  # the copy in float64 would draw other numbers
        return [repeat, *compare_gradient(encoder, probe, module=module, passes=test.passes)]
    except Exception as error:  # any, as the encoder's
        message, (name, *rest) = error_text(error), (REPEATS, SLOPES, LENGTH, CHANGES)[len(checks) :]
        return [*checks, rule(name, False, message), *(skip(name, message) for name in rest)]


def repeats(encoder: Encoder, images: Tensor, draws: dict[str, Any]) -> tuple[Check, Encoder | None]:
    """Whether two calls with the same input agree, and the encoder with which others can be compared: itself, or one
    that always draws the same numbers from torch's generator; None where that does not help."""
    change = _difference(encoder, images, draws)
    if change <= REPEAT_ERROR:
        return rule(REPEATS, True, f"two calls differ by {change:.2g} of the embedding", difference=change), encoder
    message = (
        f"two calls with the same input differ by {change:.2g} of the embedding: the encoder draws new random "
        "numbers, so no view can be seen again; declare them (encoder.stochastic=true, or `draws` and `randomness`), "
        "or take more views (attack.views)"
    )

    @wraps(encoder, assigned=(), updated=())
    def fixed(images: Tensor, **draws: Any) -> Tree:
        return with_seed(lambda: encoder(images, **draws))

    check = rule(REPEATS, False, message, difference=change)
    return check, fixed if _difference(fixed, images, draws) <= REPEAT_ERROR else None


def compare_gradient(
    encoder: Encoder, probe: Probe, *, module: nn.Module | None, passes: PassCount | None = None
) -> list[Check]:
    """The checks SLOPES, LENGTH and CHANGES of the gradient of `encoder`, called as the attack calls it. Small
    differences are of a float64 copy of `module`, counted in `passes`: so precision and wrappers are checked too."""
    float_probe = probe.to(probe.views.dtype)
    loss, generator = float_probe.loss(encoder), torch.Generator().manual_seed(probe.seed)
    leaf = float_probe.views.detach().clone().requires_grad_()
    with torch.enable_grad():
        (grad,) = torch.autograd.grad(loss(leaf).sum() + 0 * leaf.sum(), leaf)
    if not bool(grad.any()):
        message = "there is no gradient: use a gradient-free attack (Square)"
        return [rule(SLOPES, False, message), skip(LENGTH, message), skip(CHANGES, message)]
    wide = None if module is None else _wide(module, probe.views)
    exact = float_probe if wide is None else probe.to(torch.float64)
    small = _small(
        exact, loss if wide is None else exact.loss(CountedCalls(wide, passes)), grad.to(exact.views), generator
    )
    directions = _white(probe.views, FAR, generator)
    changes = _changes(loss, float_probe.views, directions, VISIBLE)
    cosine = _agreement(_directional_slopes(grad, directions), changes)
    message = f"the gradient agrees with changes of {VISIBLE * 255:.0f}/255 to a cosine of {cosine:.2f}"
    remedy = (
        f" (below {AGREE}): it is shattered or wrong, so an attack along it proves nothing; attack through a smooth "
        "surrogate, or without gradients (Square)"
    )
    return [*small, rule(CHANGES, cosine >= AGREE, message, remedy, cosine=cosine)]


def _small(probe: Probe, loss: Loss, grad: Tensor, generator: torch.Generator) -> list[Check]:
    views, h = probe.views, SMALL[probe.views.dtype]
    directions = _white(views, NEAR, generator)
    slopes, changes = _directional_slopes(grad, directions), _changes(loss, views, directions, h)
    nearer = _changes(loss, views, directions, h / 4)
    with torch.no_grad():
        rounding = torch.finfo(views.dtype).eps * float(loss(views).abs().mean()) / h
    scale = max(float(changes.norm()), float(nearer.norm()))
    if float(changes.abs().median()) <= FLAT * rounding or float((changes - nearer).norm()) > UNSTEADY * scale:
        message = "the encoder is no smooth function: visible changes alone judge its gradient"
        return [skip(SLOPES, message), skip(LENGTH, message)]
    cosine, factor = _agreement(slopes, changes), float(slopes.norm() / changes.norm())
    message = f"the gradient agrees with the encoder's real slope to a cosine of {cosine:.3f}"
    remedy = (
        f" (below {EXACT}); a branch is detached, rounded or noisy: attack through a surrogate, or without gradients "
        "(Square)"
    )
    direction = rule(SLOPES, cosine >= EXACT, message, remedy, cosine=cosine)
    if cosine < EXACT:
        return [direction, skip(LENGTH, "the gradient has another direction")]
    message = f"the gradient is {factor:.3g} times as long as the encoder's real slope"
    remedy = (
        "; steps are normalised, so nothing is masked, but a learning rate (SGD), a penalty and an ensemble's mean "
        "gradient depend on it: remove the factor from the encoder's backward pass"
    )
    return [direction, rule(LENGTH, 1 / FACTOR <= factor <= FACTOR, message, remedy, factor=factor)]


def _white(views: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """White directions (count,R,C,h,w)."""
    return torch.randn(count, *views.shape, generator=generator, dtype=torch.float64).to(views)


def _directional_slopes(grad: Tensor, directions: Tensor) -> Tensor:
    """The directional derivatives (directions,R) by the gradient."""
    return torch.stack([(grad * way).flatten(1).double().sum(1) for way in directions])


@torch.no_grad()
def _changes(loss: Loss, at: Tensor, directions: Tensor, h: float) -> Tensor:
    """The directional derivatives by central differences."""
    return torch.stack([(loss(at + h * way) - loss(at - h * way)).double() / (2 * h) for way in directions])


def _agreement(slopes: Tensor, changes: Tensor) -> float:
    """The mean cosine of the slopes of a view (directions,R), over the views whose loss depends on anything."""
    alive = (slopes != 0).any(0) | (changes != 0).any(0)
    # with the largest value one: the cosine of very small ones is wrong
    first, other = (x / x.abs().amax(0).clamp(min=torch.finfo(x.dtype).tiny) for x in (slopes, changes))
    cosines = F.cosine_similarity(first, other, dim=0)
    return float(cosines[alive].mean()) if bool(alive.any()) else 0.0


def _wide(module: nn.Module, views: Tensor) -> nn.Module | None:
    """A copy in float64; None if the module or the device has no float64."""
    try:
        wide = copy.deepcopy(module).double()
        with torch.no_grad():
            leaves(wide(views[:1].double()))
    except Exception:  # a network may reject float64 with any error
        return None
    return wide


@torch.no_grad()
def _difference(encoder: Encoder, images: Tensor, draws: dict[str, Any]) -> float:
    """Of two answers, relative to their length."""
    pairs = zip(*(leaves(encoder(images, **draws)) for _ in range(2)), strict=True)
    return max(float((a - b).double().norm() / a.double().norm().clamp(min=1e-300)) for a, b in pairs)
