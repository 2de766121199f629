"""Is the second patch better? Simulated photographs, in inks and by cameras that the attack does not know."""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attacks.eot.bank import Bank
from attacks.inference import sign_flips
from attacks.notebook import robustness
from attacks.physical.photos import read_photo
from attacks.physical.score import make_judge, score_views
from attacks.physical.scoring import score_photos
from attacks.physical.sheet import write_sheet
from attacks.physical.simulation import Ranges, simulate
from attacks.physical.simulation.camera import to_display, to_light
from attacks.physical.views import photo_view, rerun
from transforms import Compose

from .table import BenchmarkTable

SCENES = ("astronaut", "rocket", "coffee")
WORDS = {"engine.device": "cpu", "sanity": "none", "evaluate.views": 8, "evaluate.refine": 0}
FIRST = {
    "printer": "generic",
    "perturbation.gamut": "generic",
    "perturbation.card": True,
    "perturbation.width_mm": 100,
}
COLUMNS = {"first": ".3f", "second": ".3f", "difference": "+.3f", "low": "+.3f", "high": "+.3f"}


def draw_rig(random: np.random.Generator) -> Ranges:
    """A camera's place: angles and distance of which only the middle is drawn, from wide ranges."""
    middle, reach = random.uniform([-30, -20, -15, 1.0], [30, 20, 15, 1.4]), np.array([8, 8, 8, 0.1])
    spans = zip(("yaw", "pitch", "degrees", "distance"), middle - reach, middle + reach, strict=True)
    values: dict[str, Any] = {name: (float(low), float(high)) for name, low, high in spans}
    return Ranges(jitter=0.0, scale=(1.0, 1.0), shift=(-0.05, 0.05), **values)


def make_patch(folder: Path, preset: str, ink: int, **values: object) -> None:
    """A run whose card is printed in an invented ink: dot gain, density, impurity of the inks and paper are drawn."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        robustness("pocket", preset=preset, out=folder, **WORDS, **values)
    write_sheet(folder, dpi=150)
    random, file = np.random.default_rng(ink), folder / "print" / "card.png"
    gain, densest, paper = random.uniform(0, 0.25), random.uniform(0.9, 2.0), random.uniform(0.75, 0.95, 3)
    mix = np.eye(3) + random.uniform(0, 0.35, (3, 3))
    cover = 1 - to_light(read_photo(file) / np.float32(255))
    density = -np.log10(np.maximum(1 - cover - 4 * gain * cover * (1 - cover), 10**-densest))
    light = paper * 10 ** -(density @ (mix / mix.sum(1, keepdims=True)).T)
    Image.fromarray(np.rint(255 * to_display(light)).astype(np.uint8)).save(file)


def compare_pair(folder: Path, ink: int, scene: str, number: int, sizes: tuple[int, int, int]) -> list[float]:
    """The success of a first and of a second patch, in photographs other than those measured."""
    (poses, measured, gradients), rig = sizes, draw_rig(np.random.default_rng(number))
    first, second, size = folder / "first", folder / "second", (480, 640)
    words = {"attack.gradients": gradients, "seed": number}
    make_patch(first, "patch_quickstart", ink, **FIRST, **words, **{"data.photos": [scene]})
    simulate(first, folder / "measured", measured, 2 * number, size, rig, ink=0.0)
    preset = score_photos(first, folder / "measured", device="cpu").folder / "preset.yaml"
    make_patch(second, str(preset), ink, **words)
    study, shares = rerun(first, "cpu").study, []
    for run in (first, second):
        files = simulate(run, folder / f"of {run.name}", poses, 2 * number + 1, size, rig, ink=0.0)
        views = torch.stack([photo_view(read_photo(file), study.queries.images.shape[-1]).pixels for file in files])
        bank = Bank(Compose([]), torch.zeros(1, 0))
        scores = score_views(make_judge(study), views, torch.zeros(poses, dtype=torch.long), bank)
        shares.append(float(scores.success.double().mean()))
    return shares


def run(
    inks: int = 6, seeds: int = 3, poses: int = 40, measured: int = 12, gradients: int = 32
) -> list[BenchmarkTable]:
    """The success of a second patch, made with the preset that scoring photographs of the first one writes, and of
    the first, at as many gradients, in photographs from the same poses.

    An ink has `seeds` cameras, each with its own place, scene and first patch; other photographs are measured than
    judged. Intervals are of the paired difference, by sign flips.
    """
    cells, rows = [(ink, seed) for ink in range(inks) for seed in range(seeds)], []
    for ink, seed in cells:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name), ink, SCENES[seed % len(SCENES)], 100 * ink + seed
            rows.append(compare_pair(*place, (poses, measured, gradients)))
    pairs = torch.tensor(rows, dtype=torch.float64).view(inks, seeds, 2)
    table = {f"ink {i + 1}": _row(part) for i, part in enumerate(pairs)}
    table |= {f"{len(cells)} pairs": _row(pairs.flatten(0, 1)), f"{inks} inks": _row(pairs.mean(1))}
    return [BenchmarkTable(f"Success in {poses} photographs, {gradients} gradients a patch", COLUMNS, {**table})]


def _row(pairs: Tensor) -> tuple[float, ...]:
    first, second = pairs.unbind(-1)
    return (float(first.mean()), float(second.mean()), *sign_flips(second, first).difference[:3])
