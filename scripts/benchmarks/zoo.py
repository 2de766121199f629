"""The sanity checks of an attack on encoders that are rigged, and on honest ones."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import scipy.stats
import torch
from torch import Tensor, nn

from attacks import EOT, Away, Linf, Wiener
from attacks.data.gallery import HELD_OUT, Pictures, tiles
from attacks.encoders.passes import PassCount
from attacks.eot.problem import Options, Problem
from attacks.evaluation.sanity import Sanity, examine
from attacks.evaluation.sanity.check import mean
from attacks.evaluation.sanity.short_attack import ShortAttack, short_attack
from attacks.solvers.loop import start
from transforms import Affine, Brightness, Compose

from .contest import spread_over
from .table import BenchmarkTable, Row
from .zoo_encoders import SIZE, Lambda, RiggedEncoder, honest, jitter, rigged_encoders

VIEWS = Compose([Affine(degrees=10, scale=(0.9, 1.1), translate=0.05), Brightness(0.1)])
EPS = 8 / 255
#: Gradients of a picture from which the truth is taken.
STEPS = 40
#: An encoder masks if a twin's perturbation is better by this share of its own gain, at this level.
SHARE, LEVEL = 0.1, 0.05
#: The deviation of the noise of the smoothed twin.
NOISE = 0.02


@cache
def held_out_tiles() -> Pictures:
    """The pictures of truths and batteries."""
    return tiles(SIZE, HELD_OUT)


def attack_on(encoder: nn.Module, images: Tensor, steps: int, seed: int = 0) -> ShortAttack:
    """An attack that leads away from the encoder's own embedding."""
    with torch.no_grad():
        problem = Problem(images, encoder(images), encoder, Away(), Linf(EPS))
    return short_attack(problem, Options(Wiener(), EOT(VIEWS, views=4), steps=steps, seed=seed), PassCount())


def does_mask(case: RiggedEncoder, pictures: int) -> bool:
    """Whether a perturbation made with a twin (without the defence, or a smooth one), or with noise in the input,
    fools the encoder better than its own gradient does: lower losses on held-out views (Wilcoxon's test over
    pictures), by a share of the gain. An attack that ends with an error has not begun."""
    torch.manual_seed(0)  # of encoders that draw
    test = attack_on(case.encoder, held_out_tiles().spread(pictures).images, STEPS)
    own_delta = _delta(lambda: test.run().delta)
    noisy = nn.Sequential(Lambda(jitter(NOISE)), case.encoder).eval()
    deltas = [_delta(partial(_transfer, test, twin)) for twin in case.twins]
    deltas.append(_delta(lambda: test.run(encoder=noisy).delta))
    candidates = [delta for delta in deltas if delta is not None]
    choosing = replace(test, judges=test.choosers)
    best = min(candidates, key=lambda delta: mean(choosing.judge(delta)))
    own_delta = start(test.problem, test.options.seed) if own_delta is None else own_delta
    clean, own_losses = test.clean_losses(), test.judge(own_delta)
    twin = test.judge(best)
    better = (own_losses - twin).double().mean(1)
    level = scipy.stats.wilcoxon(better.numpy(), alternative="greater").pvalue if bool(better.any()) else 1.0
    return bool(level < LEVEL) and float(better.mean()) > SHARE * abs(mean(clean) - mean(twin))


def battery(encoder: nn.Module, seed: int) -> Sanity:
    """The sanity checks on two pictures."""
    torch.manual_seed(seed)  # of encoders that draw
    pictures = held_out_tiles().images
    test = attack_on(encoder, pictures[[2 * seed % len(pictures), (2 * seed + 7) % len(pictures)]], 20, seed)
    return examine(test.problem, test.options, module=encoder)


class ZooResult(NamedTuple):
    """The result of an encoder: whether it masks (None: honest), the share of its batteries in which "masking" failed
    and in which any check did, and the mean encoder passes of a battery, forward and backward."""

    name: str
    masks: bool | None
    masking: float
    failed: float
    forward: float
    backward: float


def zoo_result(name: str, rounds: int, pictures: int) -> ZooResult:
    case = rigged_encoders().get(name)
    encoder = honest()[name] if case is None else case.encoder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [battery(encoder, seed) for seed in range(rounds)]
        masks = None if case is None else does_mask(case, pictures)
    masking = sum(any(check.name == "masking" for check in entry.failed) for entry in results) / rounds
    forward, backward = (sum(entry.cost[way] for entry in results) / rounds for way in ("forward", "backward"))
    return ZooResult(name, masks, masking, sum(bool(entry.failed) for entry in results) / rounds, forward, backward)


def run(rounds: int = 10, pictures: int = 8, workers: int = 2) -> list[BenchmarkTable]:
    """The sanity checks on rigged and honest encoders: which of those that mask their gradient are detected."""
    names = [*rigged_encoders(), *honest()]
    ask = partial(zoo_result, rounds=rounds, pictures=pictures)
    with spread_over(workers) as spread:
        return zoo_tables(list(spread(ask, names)), rounds)


def zoo_tables(zoo_results: list[ZooResult], rounds: int) -> list[BenchmarkTable]:
    """A table of the encoders that mask, of the other rigged ones, and of the honest ones."""
    sound = [entry for entry in zoo_results if entry.masks is None]
    forward, backward = (sum(getattr(entry, way) for entry in sound) / len(sound) for way in ("forward", "backward"))
    across = f"share of {rounds} batteries in which that check failed"

    def table(title: str, verb: str, masks: bool | None, after: str = "") -> BenchmarkTable:
        members = [entry for entry in zoo_results if entry.masks is masks]
        rows: dict[str, Row] = {entry.name: (entry.masking, entry.failed) for entry in members}
        share = f"{sum(round(entry.masking * rounds) for entry in members)} of {len(members) * rounds} batteries"
        return BenchmarkTable(title, {"masking": ".0%", "any": ".0%"}, rows, (f"{verb}: {share}{after}",), across)

    passes = f"; passes of a battery: {forward:.0f} + {backward:.0f} backward"
    return [
        table("Rigged, and masking", "detected", True),
        table("Rigged, not masking", "called masking", False),
        table("Honest", "called masking", None, passes),
    ]


def _delta(make: Callable[[], Tensor]) -> Tensor | None:
    """None where the attack ends with an error, as it does without a gradient."""
    try:
        return make()
    except (ValueError, ArithmeticError, RuntimeError):
        return None


def _transfer(test: ShortAttack, twin: nn.Module) -> Tensor:
    with torch.no_grad():
        anchor = twin(test.images)
    return test.run(encoder=twin, anchor=anchor).delta
