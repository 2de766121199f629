"""The time in which ours reaches what the best peer ends with: ResNet-18, pictures of 224 x 224, all cores."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks import Away, Linf
from attacks.data.gallery import tiles
from attacks.encoders.engine import Decision, describe, keep_freed_memory, prepare
from attacks.eot.bank import Bank
from attacks.runtime.progress import Progress
from transforms import Affine, Brightness, Compose, Contrast, Perspective, Sobol, stream

from .case import PIPELINE, SIZE, Case, encoder
from .contest import OURS, Counting, Setting, installed
from .engine import decide
from .peers import kornia_views
from .strength import marks, reached
from .strength_case import CENTRE, Centred, Task, held_out
from .strength_peers import alone, art_pgd, foolbox, shipped, start, steps, torchattacks
from .table import Row, Table

WIDE = Compose(
    [Affine(degrees=45, scale=(0.7, 1.5), translate=0.15), Perspective(0.2), Brightness(0.15), Contrast((0.7, 1.3))]
)


class Cell(NamedTuple):
    """Views by name, and the radius in 255ths."""

    views: str
    eps: int

    def __str__(self) -> str:
        return f"{self.views} {self.eps}/255"


VIEWS = {"narrow": PIPELINE, "wide": WIDE}
CELLS = tuple(Cell(name, eps) for name in VIEWS for eps in (4, 8))
#: Pictures that are attacked together.
GROUP = 3
#: The share of each peer's time that ours may take at most.
BARS = {"ART": 0.1, "Foolbox": 0.1, "torchattacks": 0.2, "kornia": 0.2}


def by_kornia(task: Task, setting: Setting) -> Tensor:
    """What one writes by hand: PGD on a batch of views by kornia, one graph, `loss.backward()`."""
    generator, delta = torch.Generator().manual_seed(stream(task.seed, "views")), start(task)
    for _ in range(steps(task, setting)):
        task.ordinary.zero_grad()
        leaf = (task.image + delta).requires_grad_()
        rows = leaf.repeat_interleave(setting.views, 0)
        u = torch.rand(len(rows), task.views.dims, generator=generator)
        task.loss(task.ordinary, kornia_views(rows, u, task.views)).sum().backward()
        assert leaf.grad is not None
        moved = delta - setting.step * task.eps * leaf.grad.sign()
        delta = (task.image + moved.clamp(-task.eps, task.eps)).clamp(0, 1) - task.image
    return task.image + delta


#: Name -> module, attack, and a setting that is good on ResNet-18 in `strength`.
PEERS: dict[str, tuple[str, Callable[[Task, Setting], Tensor], Setting]] = {
    "ART": ("art", alone(art_pgd), Setting(0.2, 1, 1.0)),
    "Foolbox": ("foolbox", alone(foolbox), Setting(0.2, 4)),
    "torchattacks": ("torchattacks", alone(torchattacks), Setting(0.2, 4)),
    "kornia": ("kornia", by_kornia, Setting(0.2, 4)),
}


class Encoders(NamedTuple):
    """One network: frozen, with weights that require a gradient as a library's user passes it, as ours runs it."""

    frozen: nn.Module
    ordinary: nn.Module
    quick: nn.Module
    decision: Decision
    notes: tuple[str, ...]


@dataclass
class Measured:
    """By contestant, and for ours by its length: the seconds of each round, and the cosines of each picture."""

    seconds: dict[str | int, list[float]] = field(default_factory=dict)
    cosine: dict[str | int, list[Tensor]] = field(default_factory=dict)

    def add(self, key: str | int, seconds: float, cosine: Tensor) -> None:
        self.seconds.setdefault(key, []).append(seconds)
        self.cosine.setdefault(key, []).append(cosine)

    def __call__(self, key: str | int) -> tuple[float, float]:
        """The median seconds of a round, and the mean cosine."""
        return statistics.median(self.seconds[key]), float(torch.cat(self.cosine[key]).mean())


def run(evals: int = 64, rounds: int = 2, held_out: int = 64) -> list[Table]:
    """Seconds until ours reaches the cosine that the best peer ends with, as shares of each peer's seconds.

    Every peer gets the same number of gradients. A table of all cells with the median, then one for each.
    """
    encoders = prepared()
    with Progress("attacking", len(CELLS) * rounds) as progress:
        results = {cell: measured(cell, encoders, evals, rounds, held_out, progress) for cell in CELLS}
    shares = {cell: shared(each, evals) for cell, each in results.items()}
    names = [name for name in BARS if name in next(iter(results.values())).seconds]
    rows: dict[str, Row] = {
        str(cell): (results[cell](best(results[cell]))[1], seconds, *(ratios[name] for name in names))
        for cell, (seconds, ratios) in shares.items()
    }
    rows["median"] = (None, None, *(median([ratios[name] for _, ratios in shares.values()]) for name in names))
    rows["bar"] = (None, None, *(BARS[name] for name in names))
    heads = {"goal": ".4f", "ours s": ".2f"} | {f"/ {name}": ".3f" for name in names}
    title = (
        f"Time to the best peer's cosine: resnet18, {GROUP} pictures of {SIZE}x{SIZE}, {evals} gradients a picture"
    )
    notes = (f"{torch.get_num_threads()} threads, {rounds} rounds", *encoders.notes)
    return [Table(title, heads, rows, None, notes), *(details(cell, each, evals) for cell, each in results.items())]


def details(cell: Cell, result: Measured, evals: int) -> Table:
    """The contestants of a cell, and the lengths of ours."""
    keys: list[str | int] = [*marks(evals), *(name for name in (OURS, *PEERS) if name in result.cosine)]
    rows: dict[str, Row] = {
        f"ours, {key} gradients" if isinstance(key, int) else key: result(key)[::-1] for key in keys
    }
    notes = tuple(f"{name}: {setting}" for name, (_, _, setting) in PEERS.items() if name in result.cosine)
    return Table(f"Mean cosine, and seconds of a round: {cell}", {"cosine": ".4f", "s": ".2f"}, rows, None, notes)


def best(result: Measured) -> str:
    """The peer that ends lowest."""
    return min((name for name in PEERS if name in result.cosine), key=lambda name: result(name)[1])


def shared(result: Measured, evals: int) -> tuple[float | None, dict[str, float | None]]:
    """The seconds in which ours reaches the best peer's cosine (None: not at all), and their share of each peer's."""
    lengths: list[str | int] = [*marks(evals), OURS]
    points = [result(key) for key in lengths]
    seconds = reached(points, result(best(result))[1], 1.0)
    names = [name for name in PEERS if name in result.cosine]
    return seconds, {name: None if seconds is None else seconds / result(name)[0] for name in names}


def median(values: list[float | None]) -> float | None:
    """Where ours does not come as low, its time counts as infinite."""
    middle = statistics.median(float("inf") if value is None else value for value in values)
    return middle if middle < float("inf") else None


def prepared() -> Encoders:
    """A centred ResNet-18 with random weights, and how `engine: auto` runs it on views of a few pictures."""
    views = PIPELINE(tiles(SIZE).spread(CENTRE // 4).images, Sobol()(CENTRE // 4, PIPELINE.dims, seed=0))
    frozen, ordinary = (Centred(encoder("resnet18"), views).eval() for _ in range(2))
    frozen.requires_grad_(False)
    image, u = tiles(SIZE).images[:1], Sobol()(4 * GROUP, PIPELINE.dims, seed=0)
    keep_freed_memory()
    choice = decide(Case(image, u, frozen, ordinary, frozen(image)))
    quick = Counting(prepare(frozen, choice.decision)).eval()
    return Encoders(frozen, ordinary, quick, choice.decision, tuple(describe(choice)))


def measured(cell: Cell, encoders: Encoders, evals: int, rounds: int, views: int, progress: Progress) -> Measured:
    """All contestants in changing order, group by group of pictures. Each has a short run off the clock first."""
    result, images = Measured(), tiles(SIZE).spread(GROUP * rounds).images
    bank = held_out(VIEWS[cell.views], views, "table")
    for i in range(rounds):
        group = images[i * GROUP : (i + 1) * GROUP]
        peers = [name for name, (module, *_) in PEERS.items() if installed(module)]
        keys: list[str | int] = [*marks(evals), OURS, *peers]
        for key in random.Random(i).sample(keys, len(keys)):
            keep_freed_memory(key not in PEERS)
            attacked(key, question(cell, encoders, group, 8, i), encoders)
            asked = question(cell, encoders, group, key if isinstance(key, int) else evals, i)
            began = time.perf_counter()
            pictures = attacked(key, asked, encoders)
            result.add(key, time.perf_counter() - began, score(asked, encoders.frozen, pictures, bank))
        progress.step()
    return result


def attacked(key: str | int, asked: Task, encoders: Encoders) -> Tensor:
    """The pictures after a peer's attack, or after ours, whose key may be its length."""
    if key not in PEERS:
        return shipped(asked, encoders.decision.chunk)
    _, attack, setting = PEERS[str(key)]
    return attack(asked, setting)


def question(cell: Cell, encoders: Encoders, images: Tensor, evals: int, seed: int) -> Task:
    """The task of some pictures; ours has the encoder as the engine runs it."""
    with torch.no_grad():
        anchor = encoders.frozen(images)
    views, within, start = VIEWS[cell.views], Linf(cell.eps / 255), stream(seed, "wallclock")
    unused = images.new_zeros(0, views.dims)
    return Task(
        images,
        unused,
        encoders.quick,
        encoders.ordinary,
        anchor,
        within.eps,
        ball=within,
        views=views,
        evals=evals,
        seed=start,
    )


def score(asked: Task, frozen: nn.Module, attacked: Tensor, bank: Bank) -> Tensor:
    """The mean cosine (B,) of each picture's file, in float32."""
    return bank.losses(asked.file(attacked), asked.anchor, frozen, Away(), 32).mean(1)
