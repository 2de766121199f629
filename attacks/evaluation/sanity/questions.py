"""The checks that need short runs, and compare their losses by a rule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.passes import CountedCalls
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.tree import Encoder, Tree, leaves, length
from attacks.eot.problem import Problem
from attacks.eot.protocols import Objective, Perturbation
from attacks.evaluation.sanity.check import GROWS, Check, beats_cards, grows, guard, mean, not_worse, rule, skip
from attacks.evaluation.sanity.short_attack import ShortAttack, ShortRun, cards, largest, redrawn, rescale, resized
from attacks.optimisers.gradient import PGD
from attacks.optimisers.square import Square
from attacks.solvers.loop import start
from transforms import Compose
from transforms.camera import SensorNoise
from transforms.compose import seen
from transforms.doors import unchecked
from transforms.draws import stream

#: The noise of the smoothed gradient (its standard deviation), and the share of the attack's gain by which it must be
#: better: another run ends in another optimum, which may be a little better.
SMOOTH, MATERIAL = 2 / 255, 0.25
#: The checks with other radii.
RADII = ("largest radius", GROWS)
#: The name of the check by a smoothed encoder, of that of the untouched pictures, and of that of a defence.
SMOOTH_GRADIENT, SELF_COSINE, THROUGH_DEFENCE = "smoothed gradient", "untouched picture", "through the defence"
#: The lowest cosine of a picture to itself, and to its anchor, which may be a mean over views.
CLOSE, NEAR = 0.99, 0.5
#: Weights of red, green and blue. They differ and do not cancel, so that no set of grey or of colour hides them.
COLOURS = (1.0, -0.5, 0.25)
#: The gain of the planted point, as a multiple of the attack's gain without it; the share that an attack must reach.
WORTH, SHARE = 10.0, 0.8
#: The fewest queries with which a gradient-free search is tested, and the fewest steps of any other attack.
QUERIES, STEPS = 600, 20


def radii(test: ShortAttack, main: ShortRun, clean: Tensor, gain: float) -> list[Check]:
    """Against other radii, from a quarter of its own to one that does not bind."""
    perturbation = test.problem.perturbation
    top, radius = largest(perturbation, test.images), perturbation.eps
    if resized(perturbation, radius) is None:
        return [skip(name, f"{type(perturbation).__name__} has no radius to change") for name in RADII]
    losses = {radius: main.losses}

    def losses_at(eps: float) -> Tensor:
        if eps not in losses:
            optimiser = rescale(test.options.optimiser, eps / radius)
            losses[eps] = test.run(perturbation=resized(perturbation, eps), optimiser=optimiser).losses
        return losses[eps]

    def growth() -> Check:
        sizes = sorted({radius / 4, radius, min(4 * radius, top)})
        return grows(clean, {size: losses_at(size) for size in sizes}, gain)

    def unbound() -> Check:
        widest = resized(perturbation, top)
        deltas = cards(widest, test.images, stream(test.options.seed, "cards"))
        card_losses = {name: test.judge(delta, perturbation=widest) for name, delta in deltas.items()}
        return beats_cards(losses_at(top), main.losses, card_losses, gain)

    return [guard(name, check) for name, check in zip(RADII, (unbound, growth), strict=True)]


def one_step(test: ShortAttack, main: ShortRun, gain: float) -> Check:
    """Against one step along the gradient, as long as the radius (Goodfellow et al. 2015)."""
    if test.options.optimiser.gradient_free:
        return skip("one step", "the optimiser asks for no gradient")
    step = test.run(optimiser=PGD(1.0, 0.0, "constant"), steps=1)
    remedy = "one long step is stronger, so the steps are too short, too few, or not downhill"
    return not_worse("one step", main.losses, step.losses, gain, "that of one step as long as the radius", remedy)


def more_steps(test: ShortAttack, main: ShortRun, gain: float) -> Check:
    """Against a run of half the length: the attack takes twice its steps."""
    steps = test.options.steps
    if steps < 2:
        return skip("more steps", "a run of one step has no half")
    half = test.run(steps=steps // 2)
    remedy = "more steps must not make it weaker: the step is too long, or the gradient too noisy"
    return not_worse("more steps", main.losses, half.losses, gain, "with half the steps", remedy)


def without_gradient(test: ShortAttack, main: ShortRun, gain: float) -> Check:
    """Against a gradient-free search with as many encoder passes."""
    if test.options.optimiser.gradient_free:
        return skip("gradient-free", "the attack is itself gradient-free")
    search = test.run(optimiser=Square())
    remedy = "a search without gradients is stronger with as many encoder passes, so the gradient misleads"
    return not_worse("gradient-free", main.losses, search.losses, gain, "that of a search without gradients", remedy)


def transfer(test: ShortAttack, main: ShortRun, gain: float, module: nn.Module | None) -> Check:
    """Against a perturbation made for the same encoder with other weights."""
    other = None if module is None else redrawn(module, test.options.seed)
    if other is None:
        return skip("transfer", "the encoder has no weights that could be drawn anew")
    objective, anchor = test.problem.objective, test.problem.anchor
    try:
        if objective.stationary_at_anchor and not objective.paired:
            with torch.no_grad():
                embeddings = other(test.images)  # of the redrawn encoder; a detector's limit stays
            anchor = {**anchor, **embeddings} if isinstance(anchor, Mapping) else embeddings
        run = test.run(encoder=CountedCalls(other, test.passes), anchor=anchor)
    except Exception as error:  # any, as the encoder's
        return skip("transfer", f"the encoder with its weights drawn anew cannot be attacked: {error}")
    losses = test.judge(run.delta)
    remedy = "a perturbation made for another encoder is stronger, so the gradient of this one misleads"
    return not_worse("transfer", main.losses, losses, gain, "that of a perturbation made for other weights", remedy)


def through_defence(test: ShortAttack, delta: Tensor, bare: Tensor) -> Check:
    """The result of the run's own attack through a defence, against that of one made on the encoder within it."""
    main, other = test.judge(delta), test.judge(bare)
    remedy = "an attack that ignores the defence is stronger, so the gradient through the defence misleads"
    gain = mean(test.clean_losses()) - mean(main)
    return not_worse(THROUGH_DEFENCE, main, other, gain, "that of the attack on the bare encoder", remedy)


def smooth_gradient(test: ShortAttack, main: ShortRun, gain: float) -> Check:
    """Against the attack on a smoothed encoder: its input has noise that is new in every view, which averages a
    shattered gradient (Nesterov & Spokoiny 2017; Athalye et al. 2018). It has as many views."""
    eot, stages = test.options.eot, getattr(test.options.eot.transforms, "stages", None)
    if test.options.optimiser.gradient_free or stages is None:
        return skip(SMOOTH_GRADIENT, "the optimiser asks for no gradient, or the pipeline is no `Compose`")
    inside = stages[-1:] if encoder_draws(eot.transforms, test.judges.u[:1]) else ()
    noisy = Compose((*stages[: len(stages) - len(inside)], SensorNoise((SMOOTH, SMOOTH)), *inside))
    run = test.run(eot=replace(eot, transforms=noisy))
    remedy = "the gradient of the encoder with noise in its input is stronger, so its own is shattered"
    baseline = "that along the gradient of the smoothed encoder"
    return not_worse(SMOOTH_GRADIENT, main.losses, test.judge(run.delta), gain, baseline, remedy, MATERIAL)


def self_cosine(problem: Problem) -> Check:
    """The cosine of the untouched pictures, seen directly, to themselves and, where that is their embedding, to their
    anchor. It is not 1 where an embedding is so short that its length is clamped, or so long that it overflows."""
    objective = problem.objective
    with torch.no_grad():
        embeddings = leaves(problem.encoder(problem.images))
    anchors = leaves(problem.anchor) if objective.stationary_at_anchor and not objective.paired else embeddings
    anchors = anchors if [a.shape for a in embeddings] == [b.shape for b in anchors] else embeddings
    cosine, anchor_cosine = _cosine(embeddings, embeddings), _cosine(embeddings, anchors)
    shortest = min(float(a.flatten(1).norm(dim=1).min()) for a in embeddings)
    message = (
        f"an untouched picture has the cosine {cosine:.3f} to itself and {anchor_cosine:.3f} to its anchor; its "
        f"embedding's length is {shortest:.3g}"
    )
    remedy = ": take the anchor from the same encoder, with the same preprocessing"
    if not cosine >= CLOSE:
        remedy = ": the losses mean nothing; scale the embedding to a length near 1"
    good = cosine >= CLOSE and anchor_cosine >= NEAR
    return rule(SELF_COSINE, good, message, remedy, cosine=cosine, anchor=anchor_cosine, length=shortest)


def _cosine(first: list[Tensor], second: list[Tensor]) -> float:
    """The lowest of all pictures; NaN counts as -1."""
    pairs = zip(first, second, strict=True)
    lowest = [F.cosine_similarity(a.flatten(1).float(), b.flatten(1).float()).min() for a, b in pairs]
    return float(torch.stack(lowest).nan_to_num(-1.0).min())


@dataclass(frozen=True)
class PlantedEncoder:
    """An encoder in which an adversarial point is certain to exist (Zimmermann et al. 2022): it returns its features
    (N,D) and the colour balance of its input (N,1). The balance is a mean over the view, which hardly depends on the
    camera, and linear in the picture, so that the best delta is known in closed form."""

    encoder: Encoder

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        return unchecked(self.encoder)(images, **draws), balance(images)


@dataclass(frozen=True)
class PlantedObjective(Objective):
    """The objective minus `weight` times the balance, of (features, balance) and (anchor, balance of the anchor)."""

    objective: Objective
    weight: float

    @property
    def stationary_at_anchor(self) -> bool:
        return self.objective.stationary_at_anchor

    @property
    def paired(self) -> bool:
        return self.objective.paired

    def __call__(self, features: Tree, anchor: Tree) -> Tensor:
        loss, gain = self.objective(features[0], anchor[0]), features[1] - anchor[1]
        total: Tensor = loss - self.weight * gain[:, 0].to(loss)
        return total


def balance(images: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,1): the weighted mean of the colours."""
    return (images.mean((2, 3)) * _weights(images)).sum(1, keepdim=True)


def promise(perturbation: Perturbation, images: Tensor) -> Tensor:
    """The delta with the highest balance: the projection of a point far along the balance's gradient. The balance is
    linear, and for a ball and a box that point is the optimum of a linear loss."""
    like = torch.zeros_like(perturbation.noise(images, torch.Generator().manual_seed(0)))
    far = 4 * max(1.0, perturbation.reach)
    return perturbation.move(like, far * _weights(like)[:, None, None].expand_as(like), images)


def finds_promise(start: Tensor, optimum: Tensor, attack_losses: Tensor) -> Check:
    """From the planted encoder's losses (N,V) at the start of the attack, at the promised point, and at its end."""
    available, gain = mean(start) - mean(optimum), mean(start) - mean(attack_losses)
    share = gain / available if available > 0 else 0.0
    good = available > 0 and share >= SHARE
    message = f"the attack finds {share:.0%} of a gain that is known to be there"
    remedy = f", less than {SHARE:.0%}: the optimiser or the perturbation is broken, or far too slow"
    if available <= 0:
        message, remedy = "the perturbation's projection admits no gain at all: check the perturbation", ""
    return rule("active test", good, message, remedy, share=share, promised=available, found=gain)


def active(test: ShortAttack, clean: float, gain: float) -> Check:
    """Whether the attack reaches the planted point, from the clean loss and the attack's gain without it."""
    if test.options.optimiser.gradient_free and test.options.steps < QUERIES:
        return skip("active test", f"a search needs {QUERIES} queries to find anything (sanity.steps)")
    perturbation, objective = test.problem.perturbation, test.problem.objective
    origin, best = start(test.problem, test.options.seed), promise(perturbation, test.images)
    with torch.no_grad():
        low, high = (balance(seen(perturbation.scene(test.images, delta))) for delta in (origin, best))
    rise = float((high - low).mean())
    worth = WORTH * max(abs(gain), 0.1 * abs(clean), 1e-3)
    parts: dict[str, Any] = {
        "encoder": PlantedEncoder(test.problem.encoder),
        "objective": PlantedObjective(objective, worth / max(rise, 1e-6)),
        "anchor": (test.problem.anchor, test.images.new_zeros(length(test.problem.anchor), 1)),
    }
    steps = max(test.options.steps, STEPS)
    at_start, optimum = (test.judge(delta, **parts) for delta in (origin, best))
    return finds_promise(at_start, optimum, test.run(**parts, steps=steps).losses)


def _weights(like: Tensor) -> Tensor:
    return like.new_tensor([COLOURS[i % len(COLOURS)] for i in range(like.shape[1])])
