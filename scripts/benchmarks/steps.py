"""A step of the default attack, views, encoder and optimiser, over the encoder alone on ready views."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attacks import EOT, Away, Linf, Wiener, attack
from attacks.encoders.engine.batch_norm import fold
from attacks.schema.options import CONFIGS
from attacks.study.pipeline import preset
from transforms import Compose, Sobol

from .case import SIZE, encoder
from .table import BenchmarkTable, Row
from .timing import astronaut, median_seconds

#: Views of a step; the side of a picture by encoder, where it is not that of the photographs.
VIEWS, SIDES = (1, 4, 16), {"pocket": 96}


def run(rounds: int = 15, arch: Sequence[str] = ("pocket", "resnet18"), device: str = "cpu") -> list[BenchmarkTable]:
    """Times that a whole step takes of the encoder's forward and backward pass, for every preset of views."""
    return [compare_presets(name, rounds, device) for name in arch]


def compare_presets(arch: str, rounds: int, device: str) -> BenchmarkTable:
    """The ratio for each number of views and, of one view, the milliseconds of a step and of what is not encoder."""
    side = SIDES.get(arch, SIZE)
    network = encoder(arch).requires_grad_(False).to(device)
    fold(network)
    network, image = network.to(memory_format=torch.channels_last), astronaut(side).to(device)
    rows: dict[str, Row] = {}
    for name in sorted(path.stem for path in (CONFIGS / "transforms").glob("*.yaml")):
        figures: list[float] = []
        for count in VIEWS:
            runs = step_and_bare(network, image, preset(name, side), count)
            seconds = median_seconds(runs, rounds, device, warm=True)
            if count == VIEWS[0]:
                figures += [1e3 * seconds["step"], 1e3 * (seconds["step"] - seconds["bare"])]
            figures.append(seconds["step"] / seconds["bare"])
        rows[name] = tuple(figures)
    title = f"A step over the bare encoder: {arch}, {side}x{side}, {device}, {torch.get_num_threads()} threads"
    columns = {"ms": ".1f", "ms of ours": ".1f"} | {f"/ bare, {count}": ".2f" for count in VIEWS}
    return BenchmarkTable(f"{title}, {rounds} rounds", columns, rows, across="by views")


def step_and_bare(network: nn.Module, image: Tensor, views: Compose, count: int) -> dict[str, Callable[[], object]]:
    """A step of an attack that never ends, and the encoder on views like its own."""
    with torch.no_grad():
        anchor = network(image)
        ready = views(image, Sobol()(count, views.dims, seed=0))
    eot = EOT(views, views=count)
    parts: dict[str, Any] = {
        "encoder": network,
        "objective": Away(),
        "perturbation": Linf(8 / 255),
        "optimiser": Wiener(),
        "eot": eot,
    }
    steps = attack(image, anchor, **parts, steps=10**6)

    def bare() -> Tensor:
        leaf = ready.detach().requires_grad_()
        losses = nn.functional.cosine_similarity(network(leaf), anchor)
        return torch.autograd.grad(losses.sum(), leaf)[0]

    return {"step": partial(next, steps), "bare": bare}
