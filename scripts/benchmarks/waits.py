"""How often the host waits for a GPU in a step of an attack, and how long a step is beside the bare encoder."""

import warnings
from functools import partial

import torch
from torch import Tensor, nn

from attacks import EOT, Away, Linf, Wiener, attack
from attacks.data.gallery import tiles
from attacks.experiment.build.pipeline import preset
from attacks.solvers.loop import Steps
from transforms import Compose

from .case import encoder
from .table import Row, Table
from .timing import compare, wait

PRESETS = ("eot2d", "eot3d", "camera")
#: More steps than any measurement makes.
ENDLESS = 10_000


def run(
    arch: tuple[str, ...] = ("resnet50",),
    pictures: int = 16,
    views: int = 8,
    size: int = 128,
    rounds: int = 10,
    device: str = "cuda",
) -> list[Table]:
    """Waits for the GPU in a step, its milliseconds beside the bare encoder, and whether a step repeats its bits.

    Without a GPU the waits are not counted; tests/solvers/test_waits.py counts them on a simulated device.
    """
    return [_table(name, tiles(size).images[:pictures].to(device), views, rounds, device) for name in arch]


def _table(arch: str, images: Tensor, views: int, rounds: int, device: str) -> Table:
    network = encoder(arch).requires_grad_(False).to(device)

    def bare() -> Tensor:
        batch = images.repeat(views, 1, 1, 1).requires_grad_()
        grad: Tensor = torch.autograd.grad(network(batch).square().mean(), batch)[0]
        return grad

    rows: dict[str, Row] = {}
    for name in PRESETS:
        start = partial(_started, network, images, preset(name), views)
        steps = start()
        for _ in range(2):  # the first steps fill caches
            next(steps)
        waits = _waits(steps, device)
        times = compare({"step": partial(next, steps), "bare": bare}, rounds, device)
        twice = [[next(each).delta for _ in range(2)][-1] for each in (start(), start())]
        same = float(torch.equal(*twice))
        rows[name] = (waits, 1e3 * times["step"], 1e3 * times["bare"], times["step"] / times["bare"], same)
    columns = {"waits": ".0f", "ms a step": ".2f", "ms bare": ".2f", "/ bare": ".3f", "same bits": ".0f"}
    what = f"{arch}, {len(images)} pictures of {images.shape[-1]} px x {views} views, {device}"
    return Table(f"A step of an attack: {what}", columns, rows)


def _started(network: nn.Module, images: Tensor, views: Compose, count: int) -> Steps:
    with torch.no_grad():
        anchor = network(images)
    return attack(
        images,
        anchor,
        encoder=network,
        objective=Away(),
        perturbation=Linf(8 / 255),
        optimiser=Wiener(),
        eot=EOT(views, views=count, chunk=len(images) * count),
        steps=ENDLESS,
    )


def _waits(steps: Steps, device: str) -> float | None:
    """What CUDA's own debug mode reports in one step."""
    if torch.device(device).type != "cuda":
        return None
    wait(device)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return float(sum("called a synchronizing" in str(each.message) for each in reported))
