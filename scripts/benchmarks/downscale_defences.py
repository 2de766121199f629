"""Defences of a platform against the downscale attack: what each costs, and what an attack that knows it reaches."""

import math
from dataclasses import replace

import numpy as np
import torch.nn.functional as F

from attacks.data.images import to_bytes
from attacks.encoders.defended import ViewDefence
from attacks.evaluation.deployment import defended
from attacks.evaluation.platforms import OPEN, resamplers
from transforms import Compose, Downscale, MedianPool, OneOf, PixelCrop, Stage

from .downscale import KNOWN, Case, attacked, made, platform, psnr, sets
from .table import Row, Table

#: What a clean picture behind a defence is compared with.
REFERENCE = "Pillow lanczos"


def run(
    arch: tuple[str, ...] = ("pocket",),
    pictures: int = 2,
    size: str = "512",
    steps: int = 100,
    budgets: tuple[str, ...] = ("28dB",),
) -> list[Table]:
    """Success toward another picture behind each defence of a platform, by the libraries' own calls on the file.

    Pictures, targets and views are those of `downscale`. The attack does not know the defence (plain), or has it
    among its views (adaptive).
    """
    cases = [made(name, pictures, size) for name in arch]
    return [_behind(case, steps, budget) for case in cases for budget in budgets]


def defences(case: Case) -> dict[str, ViewDefence | None]:
    """Those of configs/defence for the encoder's side; the margin of the random phase is the ratio."""
    stages: dict[str, Stage] = {
        "area": Downscale(case.side, "cv2_area", eight_bit=True),
        "median": MedianPool(case.side),
        "random_phase": PixelCrop(math.ceil(min(case.images.shape[2:]) / case.side)),
    }
    return {"none": None} | {name: ViewDefence(Compose([stage]), "one_of") for name, stage in stages.items()}


def adaptive(views: Compose, defence: ViewDefence) -> Compose:
    """The views with a defence right before the choice of a resizer."""
    at = next(i for i, stage in enumerate(views.stages) if isinstance(stage, OneOf))
    return replace(views, stages=[*views.stages[:at], defence, *views.stages[at:]])


def _behind(case: Case, steps: int, budget: str) -> Table:
    views, ball = platform(case), sets(budget, case)
    plain, clean = attacked(case, ball, views, steps), [to_bytes(image) for image in case.images]
    reference, visible = case.features(clean, resamplers()[0][REFERENCE]), {"plain": plain}
    rows: dict[str, Row] = {}
    for name, defence in defences(case).items():
        seen = case.features(_kept(clean, defence, "clean", KNOWN), resamplers()[0][KNOWN])
        cost = float(F.cosine_similarity(seen, reference).mean())
        rows[name] = (cost, *_scores(case, plain, defence, "plain"), None, None)
        if defence is not None:
            visible[name] = attacked(case, ball, adaptive(views, defence), steps)
            rows[name] = (*rows[name][:3], *_scores(case, visible[name], defence, "adaptive"))
    decibels = ", ".join(f"{name} {float(psnr(files, case.images).mean()):.1f}" for name, files in visible.items())
    notes = (
        f"clean: cosine of a picture behind the defence and {KNOWN} to itself behind {REFERENCE}",
        f"success and cosine to the target: of {', '.join(OPEN)} at the exact size",
        f"PSNR in dB: {decibels}",
    )
    columns = {"clean": ".3f", "plain": ".2f", "plain, cosine": ".2f", "adaptive": ".2f", "adaptive, cosine": ".2f"}
    what = f"{len(clean)} pictures of {case.images.shape[-1]} px, {case.name}, {steps} steps"
    return Table(f"Success behind defences at {budget}: {what}", columns, rows, notes=notes)


def _scores(case: Case, files: list[np.ndarray], defence: ViewDefence | None, attack: str) -> tuple[float, float]:
    """The success and the cosine to the target, means over files and open resizers."""
    each = [case.scores(_kept(files, defence, attack, name), resamplers()[0][name]) for name in OPEN]
    hits, cosines = (sum(float(x.double().mean()) for x in column) / len(OPEN) for column in zip(*each, strict=True))
    return hits, cosines


def _kept(files: list[np.ndarray], defence: ViewDefence | None, attack: str, resizer: str) -> list[np.ndarray]:
    """Files behind a defence, drawn anew for each file and resizer."""
    if defence is None:
        return files
    return [defended(defence, pixels, f"{attack} {i} {resizer}", 0) for i, pixels in enumerate(files)]
