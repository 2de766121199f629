"""Is the second patch better? Simulated photographs, in inks and by cameras that the attack does not know."""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from attacks.eot.bank import Bank
from attacks.inference import sign_flips
from attacks.notebook import robustness
from attacks.physical.photos import read_photo
from attacks.physical.score import make_judge, score_views
from attacks.physical.scoring import score_photos
from attacks.physical.sheet import write_sheet
from attacks.physical.simulation.camera import to_display, to_light
from attacks.physical.simulation.shots import Ranges
from attacks.physical.simulation.simulate import simulate
from attacks.physical.views import photo_view, rerun
from transforms import Compose

from .table import BenchmarkTable

SCENES, SIZE = ("astronaut", "rocket", "coffee"), (480, 640)
WORDS = {"engine.device": "cpu", "sanity": "none", "evaluate.views": 8, "evaluate.refine": 0}
FIRST: dict[str, object] = {"printer": "generic", "perturbation.gamut": "generic"}
FIRST |= {"perturbation.card": True, "perturbation.width_mm": 100}
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


def compare_pair(folder: Path, ink: int, seed: int, poses: int, calibration: int, gradients: int) -> list[float]:
    """The success of a first and of a second patch, in photographs other than those measured."""
    number, (first, second) = 100 * ink + seed, (folder / "first", folder / "second")
    rig, words = draw_rig(np.random.default_rng(number)), {"attack.gradients": gradients, "seed": number}
    make_patch(first, "patch_quickstart", ink, **FIRST, **words, **{"data.photos": [SCENES[seed % len(SCENES)]]})
    simulate(first, folder / "measured", calibration, 2 * number, SIZE, rig, ink=0.0)
    score_photos(first, folder / "measured", device="cpu")
    make_patch(second, str(first / "photos" / "preset.yaml"), ink, **words)
    study, shares, rows = rerun(first, "cpu").study, [], torch.zeros(poses, dtype=torch.long)
    for run in (first, second):
        files = simulate(run, folder / f"of {run.name}", poses, 2 * number + 1, SIZE, rig, ink=0.0)
        views = torch.stack([photo_view(read_photo(file), study.queries.images.shape[-1]).pixels for file in files])
        scores = score_views(make_judge(study), views, rows, Bank(Compose([]), torch.zeros(1, 0)))
        shares.append(float(scores.success.double().mean()))
    return shares


def run(
    inks: int = 6, seeds: int = 3, poses: int = 40, calibration: int = 12, gradients: int = 32
) -> list[BenchmarkTable]:
    """The success of a second patch, made with the preset that scoring photographs of the first one writes, and of
    the first, at as many gradients, in photographs from the same poses.

    Each pair has its own camera and first patch; its scene is one of three, its ink one of `inks`, unknown to the
    attack. Intervals are of the paired difference, by sign flips; of fewer than six values `low` and `high` are their
    range.
    """
    rows = []
    for number in range(inks * seeds):
        with tempfile.TemporaryDirectory() as name:
            rows.append(compare_pair(Path(name), number // seeds, number % seeds, poses, calibration, gradients))
    pairs = torch.tensor(rows, dtype=torch.float64).view(inks, seeds, 2)
    parts = {f"ink {i + 1}": part for i, part in enumerate(pairs)}
    parts |= {f"{len(rows)} pairs": pairs.flatten(0, 1), f"{inks} inks": pairs.mean(1)}
    table = {
        name: (*part.mean(0).tolist(), *sign_flips(part[:, 1], part[:, 0]).difference[:3])
        for name, part in parts.items()
    }
    return [BenchmarkTable(f"Success in {poses} photographs, {gradients} gradients a patch", COLUMNS, {**table})]
