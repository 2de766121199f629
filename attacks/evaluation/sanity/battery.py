"""The battery of sanity checks."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from attacks.encoders.black_box.asked import AnswerError, black_box
from attacks.encoders.passes import CountedCalls, PassCount
from attacks.eot.faults.locate import AT_END
from attacks.eot.problem import STEPS, Options, Problem
from attacks.evaluation.sanity import check, questions
from attacks.evaluation.sanity.check import LOWERS, NOISE, PLATEAU, ROOM, Check, Sanity, guard, mean, rule, skip
from attacks.evaluation.sanity.differences import CHANGES, LENGTH, NO_GRADIENT, REPEATS, SLOPES, differences
from attacks.evaluation.sanity.questions import RADII, SELF_COSINE, SMOOTH_GRADIENT, THROUGH_DEFENCE
from attacks.evaluation.sanity.short_attack import ShortAttack, hasten, short_attack
from attacks.optimisers.nes import LabelOnly
from attacks.solvers.checks import Silent, check_images

#: Views of each step of a short run.
VIEWS = 4
#: The checks that need a running attack, then those that need its gradient.
BY_RUNS = ("active test", *RADII, "one step", "more steps", "gradient-free", "transfer", SMOOTH_GRADIENT)
BY_GRADIENTS = (ROOM, NOISE)
#: The checks that fail with a masked gradient.
MASKING = (LOWERS, SLOPES, CHANGES, "largest radius", "gradient-free", "transfer", SMOOTH_GRADIENT, THROUGH_DEFENCE)
#: The name of the check whether the gradient lasts.
LASTS = "gradient to the end"
MASKED = "masking"
#: All checks, but for THROUGH_DEFENCE, which only a defence has.
NAMES = (LOWERS, *BY_RUNS, *BY_GRADIENTS, SELF_COSINE, REPEATS, SLOPES, LENGTH, CHANGES, LASTS, PLATEAU, MASKED)


def examine(
    problem: Problem,
    options: Options,
    *,
    views: int = VIEWS,
    planned: int = STEPS,
    trace: Sequence[float | None] = (),
    module: nn.Module | None = None,
    results: tuple[Tensor, Tensor] | None = None,
) -> Sanity:
    """Check an attack by short runs of it on a few pictures.

    Args:
        problem: of a few pictures; two are enough.
        options: of the run, but `steps` of a short run, such as 20; budget and adaptive views are ignored.
        views: of each step, at most.
        planned: the steps of the run itself, by which short runs scale their step size (see `hasten`).
        trace: the held-out loss after each step of the run itself; None where there was no comparison.
        module: the encoder as a module, if the problem's encoder is a wrapper: for redrawn weights and for float64.
        results: of the run itself through a defence, and of the attack on the encoder within it: two deltas.

    An error of the attack or of the encoder becomes a failed check, and so does a gradient that ends on the way.
    Raises ValueError for a number below 1.

    Examples:
        >>> import torch
        >>> from attacks import EOT, Linf, PGD, Toward
        >>> from attacks.evaluation import examine
        >>> from attacks.eot.problem import Options, Problem
        >>> images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> problem = Problem(images, torch.zeros(2, 192), torch.nn.Flatten().eval(), Toward("l2"), Linf())
        >>> sanity = examine(problem, Options(PGD(), EOT(), steps=3))
        >>> [(check.name, check.verdict) for check in sanity.checks[:2]], sanity.failed
        ([('lowers the loss', 'passed'), ('active test', 'passed')], ())
    """
    for name, value in (("views", views), ("steps", options.steps), ("planned", planned)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1; got {value}")
    check_images(problem.images, slack=0)
    began = time.perf_counter()
    counter = PassCount()
    module = problem.encoder if module is None and isinstance(problem.encoder, nn.Module) else module
    short = replace(
        options,
        eot=replace(options.eot, views=min(options.eot.views, views)),
        optimiser=hasten(options.optimiser, planned, options.steps),
        budget=None,
        adaptive=None,
    )
    test = short_attack(replace(problem, encoder=CountedCalls(problem.encoder, counter)), short, counter)
    box = None if module is None else black_box(module)
    decides = box is not None and box.answer == "same"  # or not the same
    checks = _checks(test, module, options.eot.views)
    if decides and isinstance(options.optimiser, LabelOnly):
        checks = check.beyond_the_radius(checks)
    no_steps = skip(PLATEAU, "not applicable: an answer of same or not has no steps")
    checks.append(no_steps if decides else check.plateau(trace))
    if results is not None:
        checks.append(guard(THROUGH_DEFENCE, lambda: questions.through_defence(test, *results)))
    checks.append(masking(checks))
    cost = {"forward": float(counter.forward), "backward": float(counter.backward)}
    return Sanity(tuple(checks), {**cost, "seconds": time.perf_counter() - began})


def masking(checks: Sequence[Check]) -> Check:
    """Whether the encoder masks its gradient, from the other checks."""
    signs = [item.name for item in checks if item.name in MASKING and item.verdict == "failed"]
    tests = [item.name for item in checks if item.name in MASKING and item.verdict != "skipped"]
    message = f"{len(signs)} of {len(tests)} signs of a hidden gradient"
    remedy = f" ({', '.join(signs)}): a stronger attack may exist, so the success may be too low"
    return rule(MASKED, not signs, message, remedy, signs=float(len(signs)), asked=float(len(tests)))


def lasts(records: Sequence[warnings.WarningMessage]) -> Check:
    """Whether the attack had a gradient until its end, or until its loss was at its minimum, from the warnings of its
    run. Other warnings are passed on."""
    messages = [str(record.message) for record in records if issubclass(record.category, Silent)]
    for record in records:
        if not issubclass(record.category, Silent):
            warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)
    faults = [message for message in messages if AT_END not in message]
    message = faults[0] if faults else "the attack had a gradient to its end, or to that of its loss"
    remedy = "; the encoder saturates: attack its logits, or without gradients (Square)"
    return rule(LASTS, not faults, message, remedy)


def _checks(test: ShortAttack, module: nn.Module | None, views: int) -> list[Check]:
    gradient_checks = [guard(SELF_COSINE, lambda: questions.self_cosine(test.problem)), *differences(test, module)]
    try:
        clean = test.clean_losses()
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always", Silent)
            main = test.run()
    except AnswerError:
        raise
    except Exception as error:  # an encoder may raise any
        *absent, at_end = (skip(name, "the attack does not run") for name in (*BY_RUNS, *BY_GRADIENTS, LASTS))
        return [rule(LOWERS, False, check.error_text(error)), *absent, *gradient_checks, at_end]
    is_black_box = module is not None and black_box(module) is not None
    gradient_checks.append(skip(LASTS, NO_GRADIENT) if is_black_box else lasts(records))
    gain = mean(clean) - mean(main.losses)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Silent)  # of other runs than the attack's
        checks = [
            check.lowers(clean, main.losses, test.options.steps, test.options.eot.views),
            guard("active test", lambda: questions.active(test, mean(clean), gain)),
            *questions.radii(test, main, clean, gain),
            guard("one step", lambda: questions.one_step(test, main, gain)),
            guard("more steps", lambda: questions.more_steps(test, main, gain)),
            guard("gradient-free", lambda: questions.without_gradient(test, main, gain)),
            guard("transfer", lambda: questions.transfer(test, main, gain, module)),
            guard(SMOOTH_GRADIENT, lambda: questions.smooth_gradient(test, main, gain)),
        ]
    if test.options.optimiser.gradient_free:
        checks += [skip(name, "the optimiser asks for no gradient") for name in BY_GRADIENTS]
        return [*checks, *gradient_checks]
    checks.append(check.room(test.problem.perturbation, test.images, main.start, main.end))
    uniform = test.options.eot.risk.uniform
    checks.append(check.noise(main.c, views) if uniform else skip(NOISE, "the views of a tail do not show its noise"))
    return [*checks, *gradient_checks]
