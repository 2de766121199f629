"""The main job: attack pictures, write them to files, and judge the files on views that no attack has seen.

Four arms, judged alike: `clean`, `noise` (same budget, no optimisation), `no_eot` (the same optimiser and the same
number of gradient evaluations, but only the picture itself is looked at) and `eot`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from attacks.build import Parts
from attacks.eot import EOT
from attacks.evaluation import Bank, Scores, bank, evaluate
from attacks.files import atomic, write_text
from attacks.images import load_image, save_image
from attacks.loop import Encoder
from attacks.progress import Progress
from attacks.schema import Run
from attacks.solver import Best, watch
from transforms import Compose, stream

ARMS = ("clean", "noise", "no_eot", "eot")


class Cost(NamedTuple):
    """Encoder passes, in views, and seconds."""

    forward: int
    backward: int
    seconds: float


class Trace(NamedTuple):
    """One line of `steps.csv`. `held_out` is the mean cosine on the fixed bank that chooses the best iterate, as of
    the last comparison, or None before the first."""

    arm: str
    step: int
    cosine: float
    stderr: float
    snr: float
    held_out: float | None
    evals: int


@dataclass(frozen=True)
class Outcome:
    """What an experiment found: scores of each arm, the pictures as read back from their files, and the way there."""

    scores: dict[str, Scores]
    pictures: dict[str, Tensor]
    budget: dict[str, Tensor]
    trace: list[Trace]
    cost: Cost
    bank: Bank


class _Counted:
    """An encoder that counts the views it has seen."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.views = encoder, 0

    def __call__(self, images: Tensor) -> Tensor:
        self.views += len(images)
        return self.encoder(images)


def experiment(run: Run, parts: Parts, out: Path) -> Outcome:
    """Run the four arms; write `pictures/`, `adversarial.png`, `perturbation.safetensors`, `steps.csv` to `out`."""
    began, encoder = time.perf_counter(), _Counted(parts.encoder)
    images = parts.queries.images.to(parts.device)
    gallery = _embed(encoder, parts.gallery.images, parts.device, run.engine.chunk)
    own = gallery[parts.truth]
    anchor = own if parts.goal is None else gallery[parts.goal]

    noise = parts.perturbation.noise(images, torch.Generator().manual_seed(stream(run.seed, "noise")))
    deltas, trace, backward = {"clean": torch.zeros_like(images), "noise": noise}, [], 0
    eot = EOT(parts.transforms, parts.draws, n=run.attack.views, chunk=run.engine.chunk)
    for arm, expectation, steps in (
        ("no_eot", replace(eot, transforms=Compose(), n=1), run.attack.steps * run.attack.views),
        ("eot", eot, run.attack.steps),
    ):
        best, lines = _optimise(arm, run, parts, encoder, images, anchor, expectation, steps)
        deltas[arm], backward = best.delta, backward + lines[-1].evals
        trace += lines

    saved = {arm: parts.perturbation.quantise(delta, images) for arm, delta in deltas.items()}
    names = file_names(parts.queries.names)
    pictures = {arm: _through_files(out / "pictures" / arm, names, images + delta) for arm, delta in saved.items()}
    views = bank(parts.transforms, run.evaluate.views, seed=run.seed, purpose="evaluate")
    views = views._replace(u=views.u.to(images))
    scores = {arm: _judge(arm, run, parts, encoder, pictures[arm], own, gallery, views) for arm in ARMS}

    save_image(out / "adversarial.png", _sheet(pictures["eot"]))
    with atomic(out / "perturbation.safetensors") as temporary:
        save_file({arm: delta.cpu().contiguous() for arm, delta in saved.items() if arm != "clean"}, temporary)
    write_text(out / "steps.csv", _csv(trace))
    budget = {arm: parts.perturbation.norm(pictures[arm].to(images) - images).cpu() for arm in ARMS}
    cost = Cost(encoder.views, backward, time.perf_counter() - began)
    return Outcome(scores, pictures, budget, trace, cost, views)


def _optimise(
    arm: str, run: Run, parts: Parts, encoder: Encoder, images: Tensor, anchor: Tensor, eot: EOT, steps: int
) -> tuple[Best, list[Trace]]:
    """One optimised arm, with its progress shown."""
    sign = 1 if parts.goal is None else -1  # a targeted loss is minus the cosine
    best, lines = None, []
    with Progress(arm, steps) as progress:
        for step, best in watch(
            images,
            anchor,
            encoder=encoder,
            objective=parts.objective,
            perturbation=parts.perturbation,
            optimiser=parts.optimiser,
            eot=eot,
            steps=steps,
            seed=stream(run.seed, arm),
        ):
            found = step.estimate
            held_out = None if best is None else sign * float(best.latest.mean())
            stderr = float(found.stderr.square().mean().sqrt()) / len(images) ** 0.5
            line = Trace(
                arm,
                step.index,
                sign * float(found.mean.mean()),
                stderr,
                float(found.snr.mean()),
                held_out,
                step.evals,
            )
            lines.append(line)
            progress.step(loss=sign * line.cosine, held_out_cosine=held_out, snr=line.snr)
    assert best is not None  # the last step is always compared
    return best, lines


def _judge(
    arm: str, run: Run, parts: Parts, encoder: Encoder, pictures: Tensor, own: Tensor, gallery: Tensor, views: Bank
) -> Scores:
    """One arm's scores, picture by picture, with progress shown."""
    found = []
    with Progress(f"judging {arm}", len(pictures)) as progress:
        for picture, clean in zip(pictures.to(parts.device), own, strict=True):
            chunk = run.engine.chunk
            found.append(evaluate(picture[None], clean[None], gallery, encoder=encoder, bank=views, chunk=chunk))
            progress.step()
    return Scores(*(torch.cat(column).cpu() for column in zip(*found, strict=True)))


@torch.no_grad()
def _embed(encoder: Encoder, images: Tensor, device: torch.device, chunk: int) -> Tensor:
    return torch.cat([encoder(part.to(device)) for part in images.split(chunk)])


def file_names(names: tuple[str, ...]) -> list[str]:
    """A PNG name for each picture: its stem, or its whole name where two stems are equal."""
    stems = [Path(name).stem for name in names]
    return [
        f"{stem if stems.count(stem) == 1 else Path(name).name}.png" for stem, name in zip(stems, names, strict=True)
    ]


def _through_files(folder: Path, names: list[str], images: Tensor) -> Tensor:
    """Write the pictures and read them back: what is judged is what a person can take away."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, image in zip(names, images, strict=True):
        save_image(folder / name, image)
    return torch.stack([load_image(folder / name)[0] for name in names])


def _sheet(images: Tensor) -> Tensor:
    """All pictures in one, row by row, without gaps; a single picture as it is."""
    columns = next(k for k in range(round(len(images) ** 0.5), 0, -1) if len(images) % k == 0)
    rows = images.unflatten(0, (columns, -1))
    return torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)


def _csv(trace: list[Trace]) -> str:
    def cell(value: object) -> str:
        return "" if value is None or value != value else f"{value:.6g}" if isinstance(value, float) else str(value)

    lines = [",".join(Trace._fields), *(",".join(map(cell, line)) for line in trace)]
    return "\n".join(lines) + "\n"
