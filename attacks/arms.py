"""The arms of an experiment: the optimised ones step by step, and the judging that all share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.build import Parts
from attacks.distributed import World
from attacks.eot import EOT
from attacks.evaluation import Bank, Scores, evaluate
from attacks.parts import Encoder
from attacks.progress import Progress
from attacks.risk import Mean
from attacks.schema import Run
from attacks.solver import Best, watch
from attacks.trees import Tree
from transforms import Compose, stream


class Trace(NamedTuple):
    """One line of `steps.csv`. `held_out` is the mean cosine on the fixed bank that chooses the best iterate, as of
    the last comparison (of the risk, if that is not the mean), or None before the first; `views` of each picture, and
    `pictures` that took part."""

    arm: str
    step: int
    cosine: float
    stderr: float
    snr: float
    held_out: float | None
    views: int
    pictures: int
    evals: int


class Counted:
    """An encoder that counts the views it has seen, and those that a gradient is asked of."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.forward, self.backward = encoder, 0, 0

    def __call__(self, images: Tensor) -> Tree:
        self.forward += len(images)
        self.backward += len(images) * images.requires_grad
        return self.encoder(images)


@dataclass(frozen=True)
class Setting:
    """What the arms have in common."""

    run: Run
    parts: Parts
    world: World
    encoder: Counted  # as the engine runs it; it gives the gradients
    judge: Counted  # in full precision; it gives the anchors and the scores
    chunk: int


def optimise(arm: str, setting: Setting, images: Tensor, anchor: Tensor, spent: int = 0) -> tuple[Best, list[Trace]]:
    """One optimised arm, with its progress shown. Without EOT each plain picture is looked at `spent` times, as often
    as all views were with it."""
    run, parts = setting.run, setting.parts
    eot = EOT(parts.transforms, parts.draws, n=run.attack.views, chunk=setting.chunk, risk=parts.risk)
    steps, adaptive, stop = run.attack.steps, parts.adaptive, run.attack.stop
    sign = 1 if parts.goal is None else -1  # a targeted loss is minus the cosine
    if arm == "no_eot":
        eot, steps = replace(eot, transforms=Compose(), n=1, risk=Mean()), spent
        adaptive = stop = None
    best, lines = None, []
    with Progress(arm, steps, shown=setting.world.first) as progress:
        for step, best in watch(
            images,
            anchor,
            stop=None if stop is None else sign * stop,
            encoder=setting.encoder,
            objective=parts.objective,
            perturbation=parts.perturbation,
            optimiser=parts.optimiser,
            eot=eot,
            steps=steps,
            seed=stream(run.seed, arm),
            budget=None if adaptive is None else run.attack.budget,
            adaptive=adaptive,
            world=setting.world,
        ):
            found, count = step.estimate, len(images)
            line = Trace(
                arm=arm,
                step=step.index,
                cosine=sign * float(found.mean.mean()),
                stderr=float(found.stderr.square().mean().sqrt()) / count**0.5,
                snr=float(found.snr.mean()),
                held_out=None if best is None else sign * float(best.latest.mean()),
                views=found.views,
                pictures=int(step.active.sum()),
                evals=step.evals,
            )
            lines.append(line)
            progress.step(loss=sign * line.cosine, held_out_cosine=line.held_out, snr=line.snr)
    assert best is not None  # the last step is always compared
    return best, lines


def judge_arm(arm: str, setting: Setting, pictures: Tensor, own: Tensor, gallery: Tensor, views: Bank) -> Scores:
    """One arm's scores, picture by picture, with progress shown."""
    found, world = [], setting.world
    with Progress(f"judging {arm}", len(pictures), shown=world.first) as progress:
        for picture, clean in zip(pictures.to(own.device), own, strict=True):
            found.append(
                evaluate(
                    picture[None],
                    clean[None],
                    gallery,
                    encoder=setting.judge,
                    bank=views,
                    chunk=setting.chunk,
                    world=world,
                )
            )
            progress.step()
    return Scores(*(torch.cat(column).cpu() for column in zip(*found, strict=True)))


def csv(trace: list[Trace]) -> str:
    def cell(value: object) -> str:
        return "" if value is None or value != value else f"{value:.6g}" if isinstance(value, float) else str(value)

    lines = [",".join(Trace._fields), *(",".join(map(cell, line)) for line in trace)]
    return "\n".join(lines) + "\n"
