"""The strength of the same attack in each precision, always scored in float32, paired by picture."""

from collections.abc import Sequence

import torch

from attacks import EOT, PGD, Away, Linf, attack, bank, evaluate, interval
from attacks.data.gallery import tiles
from attacks.encoders.engine import Decision, prepare

from .case import PIPELINE, SIZE, encoder
from .table import Row, Table

PRECISIONS = ("float32", "mixed", "bfloat16")
#: Views of a step, steps, and held-out views.
VIEWS, STEPS, UNSEEN = 16, 10, 64


def run(
    pictures: int = 30, arch: Sequence[str] = ("resnet18",), device: str = "cpu", size: int = SIZE
) -> list[Table]:
    """Strength of the attack in each precision, paired by picture.

    A table an encoder: the mean cosine of attacked tiles to their clean embeddings over held-out views, and the
    paired difference to float32, with 95 % intervals over pictures.
    """
    return [compared(name, pictures, device, size) for name in arch]


def compared(arch: str, pictures: int, device: str, size: int) -> Table:
    """One encoder in every precision, all else alike: start, views, steps; always judged in float32."""
    network = encoder(arch).requires_grad_(False).to(device)
    images = tiles(size).spread(pictures).images.to(device)
    with torch.no_grad():
        clean = torch.cat([network(image[None]) for image in images])
    unseen, budget = bank(PIPELINE, UNSEEN, seed=0, purpose="evaluate"), Linf(8 / 255)
    unseen = unseen._replace(u=unseen.u.to(images))
    cosines = {}
    for precision in PRECISIONS:
        fast = prepare(network, Decision("channels_last", precision, fold=True, chunk=8))  # type: ignore[arg-type]
        *_, last = attack(
            images,
            clean,
            encoder=fast,
            objective=Away(),
            perturbation=budget,
            optimiser=PGD(),
            eot=EOT(PIPELINE, views=VIEWS, chunk=8),
            steps=STEPS,
        )
        attacked = images + budget.quantise(last.delta, images)
        judge = prepare(network, Decision("channels_last", fold=True, chunk=8))
        cosines[precision] = evaluate(attacked, clean, clean, encoder=judge, bank=unseen, chunk=8).cosine.cpu()
    rows: dict[str, Row] = {
        precision: (float(cosine.mean()), *interval(cosine - cosines["float32"])[:3])
        for precision, cosine in cosines.items()
    }
    what = f"{arch}, {len(images)} pictures, {STEPS} steps of {VIEWS} views at 8/255, {device}"
    columns = {"cosine": ".4f", "- float32": "+.4f", "low": "+.4f", "high": "+.4f"}
    return Table(f"Strength by precision: {what}", columns, rows, "bars")
