"""The error of the estimated gradient by number of views and by sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import EOT
from attacks.experiment.build.pipeline import preset
from transforms import Antithetic, Draws, Latin, Sobol, Uniform

from .case import case
from .table import Table

SAMPLERS: dict[str, Draws] = {"Uniform": Uniform(), "Antithetic": Antithetic(), "Latin": Latin(), "Sobol": Sobol()}
VIEWS = (8, 32, 128)
REFERENCE = 8192
#: The least cosine of two references; below it, neither is exact enough.
AGREEMENT = 0.998
CHUNK = 64


def run(
    rounds: int, reference: int = REFERENCE, device: str = "cpu", views: Sequence[int] = VIEWS, size: int = 96
) -> list[Table]:
    """Cosine to the reference gradient and mean squared error against uniform draws, over `rounds` repeats.

    The pocket encoder, a photograph with a random start of 8/255, the views of the preset `camera`.
    """
    question, transforms = case("pocket", 1, device, size), preset("camera")
    noise = torch.rand(question.image.shape, generator=torch.Generator().manual_seed(0))
    delta = 8 / 255 * (2 * noise.to(question.image) - 1)

    def gradient(draws: Draws, n: int, seed: int) -> Tensor:
        eot = EOT(transforms, draws, views=n, chunk=CHUNK)
        return question.estimate(eot, question.frozen, delta, eot.points(seed, 0, delta)).grad.flatten()

    truth, second = (gradient(Sobol(), reference, seed) for seed in (-1, -2))
    agreement = float(F.cosine_similarity(truth, second, dim=0))
    energy = truth.square().sum()
    cosines: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    errors: dict[str, list[Tensor]] = {name: [] for name in SAMPLERS}
    for name, draws in SAMPLERS.items():
        for n in views:
            rows = torch.stack([gradient(draws, n, seed) for seed in range(rounds)])
            cosines[name].append(float(F.cosine_similarity(rows, truth, dim=1).mean()))
            errors[name].append((rows - truth).square().sum(1) / energy)
    baseline = errors["Uniform"]
    cosine, ratio, doubt, spread = {}, {}, {}, {}
    for name, squares in errors.items():
        cosine[name] = tuple(cosines[name])
        ratio[name] = tuple(float(e.mean() / b.mean()) for e, b in zip(squares, baseline, strict=True))
        doubt[name] = tuple(_doubt(e, b) for e, b in zip(squares, baseline, strict=True))
        spread[name] = tuple(n * float(e.mean()) for n, e in zip(views, squares, strict=True))
    what, notes = f"by number of views, {rounds} repeats", verdict(agreement, reference)
    fine, coarse = (dict.fromkeys(map(str, views), form) for form in (".3f", ".2f"))
    void = notes if agreement < AGREEMENT else ()
    constant = "c = n x mean squared error / |g|^2 (Uniform: tr Cov / |g|^2)"
    return [
        Table(f"Cosine to the gradient of {reference} views, {what}", fine, cosine, "lines", notes),
        Table(f"Mean squared error / that of uniform draws, {what}", coarse, ratio, "lines", void),
        Table("One standard error of that ratio", coarse, doubt, None, void),
        Table(constant, coarse, spread, None, void),
    ]


def verdict(agreement: float, reference: int) -> tuple[str, ...]:
    """A note on the agreement of the two references."""
    text = f"two references of {reference} views agree to a cosine of {agreement:.5f}"
    if agreement >= AGREEMENT:
        return (text,)
    return (f"VOID: {text}, below {AGREEMENT}; use a larger --reference",)


def _doubt(errors: Tensor, baseline: Tensor) -> float | None:
    """The standard error of the ratio of two means; None for a single repeat, and for the baseline itself."""
    if errors is baseline or len(errors) < 2:
        return None
    shares = [float(e.std() / e.mean()) / math.sqrt(len(e)) for e in (errors, baseline)]
    return float(errors.mean() / baseline.mean()) * math.hypot(*shares)
