"""manifest.json: what a run is, written before anything is attacked."""

import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from attacks.encoders.engine import Choice
from attacks.evaluation.per_image import declaration
from attacks.runtime.distributed import World
from attacks.schema.validate import Run
from attacks.study.study import Study

#: Of manifest.json and metrics.json.
SCHEMA = 5
PACKAGES = ("viewproof", "torch", "torchvision", "kornia", "hydra-core", "numpy", "pillow", "safetensors")
#: Libraries that draw, and write the report.
DRAWING = ("matplotlib", "jinja2")
#: Optional libraries of encoders and resizers.
LIBRARIES = ("opencv-python-headless", "timm", "open_clip_torch", "transformers", "diffusers", "onnx", "onnx2torch")


def manifest(
    run: Run, study: Study, preset: str, overrides: list[str], choice: Choice, world: World
) -> dict[str, Any]:
    """The content of manifest.json, which reproduces the run. `engine.settings` are overrides that repeat the
    engine's decision without measuring."""
    return {
        "schema": SCHEMA,
        "preset": preset,
        "overrides": overrides,
        "seed": run.seed,
        "primary": declaration(run.evaluate.primary, study.queries.sides),
        "config": asdict(run),
        "device": torch.cuda.get_device_name(study.device) if study.device.type == "cuda" else str(study.device),
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "engine": {
            "decision": choice.decision.to_dict(),
            "settings": choice.decision.settings(),
            "measurements": [measurement.to_dict() for measurement in choice.measurements],
        },
        "encoder": study.identity,
        "git": revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version_of(name) for name in (*PACKAGES, *DRAWING)}
        | {name: installed for name in LIBRARIES if (installed := version_of(name)) is not None},
        "notes": list(study.queries.notes),
    }


def version_of(name: str) -> str | None:
    """The installed version of a package; None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """The git revision of the source tree, "-dirty" appended if it was changed; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
