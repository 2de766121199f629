"""The error of the estimated gradient by number of views and by sampler."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import EOT
from attacks.study.pipeline import preset
from transforms import Sobol
from transforms.draws import Antithetic, Draws, Latin, Uniform

from .case import case
from .table import BenchmarkTable, Row

SAMPLERS: dict[str, Draws] = {"Uniform": Uniform(), "Antithetic": Antithetic(), "Latin": Latin(), "Sobol": Sobol()}
#: Numbers of views of a step, and the side of the picture.
VIEWS, SIZE = (8, 32, 128), 96
#: The least cosine of two references; below it, neither is exact enough.
AGREEMENT = 0.998
CHUNK = 64


def run(rounds: int = 15, reference: int = 8192, device: str = "cpu") -> list[BenchmarkTable]:
    """Cosine and squared error of the gradient by sampler and number of views.

    The pocket encoder, a photograph with a random start of 8/255, the views of the preset `camera`.
    """
    question, transforms = case("pocket", 1, device, SIZE), preset("camera")
    noise = torch.rand(question.image.shape, generator=torch.Generator().manual_seed(0))
    delta = 8 / 255 * (2 * noise.to(question.image) - 1)

    def gradient(draws: Draws, n: int, seed: int) -> Tensor:
        eot = EOT(transforms, draws, views=n, chunk=CHUNK)
        return question.estimate(eot, question.frozen, delta, eot.points(seed, 0, delta)).grad.flatten()

    truth, second = (gradient(Sobol(), reference, seed) for seed in (-1, -2))
    notes, void = agreement_notes(float(F.cosine_similarity(truth, second, dim=0)), reference)
    cosine: dict[str, Row] = {}
    errors: dict[str, list[Tensor]] = {}
    for name, draws in SAMPLERS.items():
        rows = [torch.stack([gradient(draws, n, seed) for seed in range(rounds)]) for n in VIEWS]
        cosine[name] = tuple(float(F.cosine_similarity(samples, truth, dim=1).mean()) for samples in rows)
        errors[name] = [(samples - truth).square().sum(1) / truth.square().sum() for samples in rows]

    subject = f"by number of views, {rounds} repeats"
    fine, coarse = (dict.fromkeys(map(str, VIEWS), form) for form in (".3f", ".2f"))
    spread: dict[str, Row] = {
        name: tuple(n * float(e.mean()) for n, e in zip(VIEWS, samples, strict=True))
        for name, samples in errors.items()
    }
    ratio: dict[str, Row] = {
        name: tuple(float(e.mean() / b.mean()) for e, b in zip(samples, errors["Uniform"], strict=True))
        for name, samples in errors.items()
    }
    return [
        BenchmarkTable(f"Cosine to the gradient of {reference} views, {subject}", fine, cosine, notes),
        BenchmarkTable(f"Mean squared error / that of uniform draws, {subject}", coarse, ratio, void),
        BenchmarkTable("c = n x mean squared error / |g|^2 (Uniform: tr Cov / |g|^2)", coarse, spread, void),
    ]


def agreement_notes(agreement: float, reference: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A note on the agreement of the two references: for the first table, and for the others."""
    text = f"two references of {reference} views agree to a cosine of {agreement:.5f}"
    if agreement >= AGREEMENT:
        return (text,), ()
    void = (f"VOID: {text}, below {AGREEMENT}; use a larger --reference",)
    return void, void
