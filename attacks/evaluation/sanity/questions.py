"""The checks that need short runs, and compare their losses by a rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.black_box.asked import Unanswered, black_box
from attacks.encoders.randomness import drawn
from attacks.encoders.tree import take
from attacks.evaluation.sanity.answers import SAME, repeats
from attacks.evaluation.sanity.check import Check, ruled, skipped
from attacks.evaluation.sanity.differences import CHANGES, LENGTH, SLOPES, Probe, compared
from attacks.evaluation.sanity.planted import (
    WORTH,
    Planted,
    Promised,
    balance,
    finds_promise,
    planted_anchor,
    promise,
)
from attacks.evaluation.sanity.rules import (
    GROWS,
    beats_cards,
    cards,
    grows,
    largest,
    not_worse,
    redrawn,
    rescaled,
    resized,
)
from attacks.evaluation.sanity.short_attack import Run, ShortAttack
from attacks.optimisers.gradient import PGD
from attacks.optimisers.square import Square
from transforms import Compose, SensorNoise, scene_of, stream
from transforms.compose import seen, view

#: Views of each picture on which the gradient is compared with real changes.
PROBES = 4
#: The noise of the smoothed gradient (its standard deviation), and the share of the attack's gain by which it must be
#: better: another run ends in another optimum, which may be a little better.
SMOOTH, MATERIAL = 2 / 255, 0.25
#: The fewest queries with which a gradient-free search is tested.
QUERIES = 600
#: The fewest steps of the active test.
LEAST = 20
#: The checks with other radii.
RADII = ("largest radius", GROWS)
#: Why the checks of a gradient, and of an answer given twice, are not made.
UNASKED = "not applicable: the encoder can only be asked, once for each picture, and has no gradient"
#: The name of the check by a smoothed encoder.
SMOOTHED = "smoothed gradient"


def guarded(name: str, ask: Callable[[], Check]) -> Check:
    """The check, failed if the attack raises an error: an encoder may raise any."""
    try:
        return ask()
    except Unanswered:  # the run stops, and its answers so far are kept
        raise
    except Exception as error:
        return ruled(name, False, message_of(error))


def message_of(error: Exception) -> str:
    """The error as a message."""
    return str(error) if isinstance(error, ValueError | FloatingPointError) else f"{type(error).__name__}: {error}"


def radii(test: ShortAttack, main: Run, clean: Tensor, gain: float) -> list[Check]:
    """Against other radii, from a quarter of its own to one that does not bind."""
    perturbation = test.problem.perturbation
    top, own = largest(perturbation, test.images), perturbation.eps
    if resized(perturbation, own) is None:
        return [skipped(name, f"{type(perturbation).__name__} has no radius to change") for name in RADII]
    losses = {own: main.losses}

    def losses_at(eps: float) -> Tensor:
        if eps not in losses:
            optimiser = rescaled(test.options.optimiser, eps / own)
            losses[eps] = test.run(perturbation=resized(perturbation, eps), optimiser=optimiser).losses
        return losses[eps]

    def grown() -> Check:
        sizes = sorted({own / 4, own, min(4 * own, top)})
        return grows(clean, sizes, [losses_at(size) for size in sizes], gain)

    def unbound() -> Check:
        widest = resized(perturbation, top)
        generator = torch.Generator().manual_seed(stream(test.options.seed, "cards"))
        drawn = cards(widest, test.images, generator)
        shown = {name: test.judge(delta, perturbation=widest) for name, delta in drawn.items()}
        return beats_cards(losses_at(top), main.losses, shown, gain)

    return [guarded(name, check) for name, check in zip(RADII, (unbound, grown), strict=True)]


def one_step(test: ShortAttack, main: Run, gain: float) -> Check:
    """Against one step along the gradient, as long as the radius (Goodfellow et al. 2015)."""
    if test.options.optimiser.gradient_free:
        return skipped("one step", "the optimiser asks for no gradient")
    step = test.run(optimiser=PGD(1.0, 0.0, "constant"), steps=1)
    remedy = "one long step is stronger, so the steps are too short, too few, or not downhill"
    return not_worse("one step", main.losses, step.losses, gain, "that of one step as long as the radius", remedy)


def more_steps(test: ShortAttack, main: Run, gain: float) -> Check:
    """Against a run of half the length: the attack takes twice its steps."""
    steps = test.options.steps
    if steps < 2:
        return skipped("more steps", "a run of one step has no half")
    half = test.run(steps=steps // 2)
    remedy = "more steps must not make it weaker: the step is too long, or the gradient too noisy"
    return not_worse("more steps", main.losses, half.losses, gain, "with half the steps", remedy)


def without_gradient(test: ShortAttack, main: Run, gain: float) -> Check:
    """Against a gradient-free search with as many encoder passes."""
    if test.options.optimiser.gradient_free:
        return skipped("gradient-free", "the attack is itself gradient-free")
    search = test.run(optimiser=Square())
    remedy = "a search without gradients is stronger with as many encoder passes, so the gradient misleads"
    return not_worse("gradient-free", main.losses, search.losses, gain, "that of a search without gradients", remedy)


def transfer(test: ShortAttack, main: Run, gain: float, module: nn.Module | None) -> Check:
    """Against a perturbation made for the same encoder with other weights."""
    other = None if module is None else redrawn(module, test.options.seed)
    if other is None:
        return skipped("transfer", "the encoder has no weights that could be drawn anew")
    objective, anchor = test.problem.objective, test.problem.anchor
    try:
        if objective.stationary_at_anchor and not objective.paired:
            with torch.no_grad():
                anchor = other(test.images)  # the redrawn encoder's embedding
        run = test.run(encoder=test.tally.of(other), anchor=anchor)
    except Exception as error:  # any, as the encoder's
        return skipped("transfer", f"the encoder with its weights drawn anew cannot be attacked: {error}")
    losses = test.judge(run.delta)
    remedy = "a perturbation made for another encoder is stronger, so the gradient of this one misleads"
    return not_worse("transfer", main.losses, losses, gain, "that of a perturbation made for other weights", remedy)


def active(test: ShortAttack, clean: float, gain: float) -> Check:
    """Whether the attack reaches the planted point."""
    if test.options.optimiser.gradient_free and test.options.steps < QUERIES:
        return skipped("active test", f"a search needs {QUERIES} queries to find anything (sanity.steps)")
    perturbation, objective = test.problem.perturbation, test.problem.objective
    origin, best = test.start(), promise(perturbation, test.images)
    with torch.no_grad():
        low, high = (balance(seen(perturbation.scene(test.images, delta))) for delta in (origin, best))
    raised = float((high - low).mean())
    worth = WORTH * max(abs(gain), 0.1 * abs(clean), 1e-3)
    parts: dict[str, Any] = {
        "encoder": Planted(test.problem.encoder),
        "objective": Promised(objective, worth / max(raised, 1e-6)),
        "anchor": planted_anchor(test.problem.anchor, test.images),
    }
    steps = max(test.options.steps, LEAST)
    begun, promised = (test.judge(delta, **parts) for delta in (origin, best))
    return finds_promise(begun, promised, test.run(**parts, steps=steps).losses)


def smoothed(test: ShortAttack, main: Run, gain: float) -> Check:
    """Against the attack on a smoothed encoder: its input has noise that is new in every view, which averages a
    shattered gradient (Nesterov & Spokoiny 2017; Athalye et al. 2018). It has as many views."""
    eot, stages = test.options.eot, getattr(test.options.eot.transforms, "stages", None)
    if test.options.optimiser.gradient_free or stages is None:
        return skipped(SMOOTHED, "the optimiser asks for no gradient, or the pipeline is no `Compose`")
    inside = stages[-1:] if drawn(eot.transforms, test.judges.u[:1]) else ()
    noisy = Compose((*stages[: len(stages) - len(inside)], SensorNoise((SMOOTH, SMOOTH)), *inside))
    run = test.run(eot=replace(eot, transforms=noisy))
    remedy = "the gradient of the encoder with noise in its input is stronger, so its own is shattered"
    what = "that along the gradient of the smoothed encoder"
    return not_worse(SMOOTHED, main.losses, test.judge(run.delta), gain, what, remedy, MATERIAL)


def differences(test: ShortAttack, module: nn.Module | None) -> list[Check]:
    """Whether the encoder repeats its answer, and whether its gradient agrees with real changes, on some views of the
    pictures with noise."""
    if module is not None and black_box(module) is not None:
        return [skipped(name, UNASKED) for name in (SAME, SLOPES, LENGTH, CHANGES)]
    perturbation, transforms, u = test.problem.perturbation, test.options.eot.transforms, test.judges.u[:PROBES]
    start = perturbation.noise(test.images, torch.Generator().manual_seed(stream(test.options.seed, "probe")))
    pictures = torch.arange(len(test.images)).repeat_interleave(len(u))
    with torch.no_grad():
        scenes = (perturbation.scene(test.images, start), scene_of(test.images))
        views, untouched = (view(transforms, scene, u) for scene in scenes)
    which = drawn(transforms, u.repeat(len(test.images), 1))
    checks: list[Check] = []
    try:
        same, encoder = repeats(test.problem.encoder, views, which)
        checks.append(same)
        if encoder is None:
            message = "the encoder's answers cannot be repeated"
            return [same, *(skipped(name, message) for name in (SLOPES, LENGTH, CHANGES))]
        anchor, seed = take(test.problem.anchor, pictures), stream(test.options.seed, "directions")
        probe = Probe(views, untouched, anchor, test.problem.objective, seed, which)
        module = module if same.verdict == "passed" else None  # the copy in float64 would draw other numbers
        return [same, *compared(encoder, probe, module=module, count=test.tally.of)]
    except Exception as error:  # any, as the encoder's
        message = message_of(error)
        rest = (SAME, SLOPES, LENGTH, CHANGES)[len(checks) :]
        return [
            *checks,
            *(ruled(name, False, message) for name in rest[:1]),
            *(skipped(n, message) for n in rest[1:]),
        ]
