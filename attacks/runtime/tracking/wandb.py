"""Weights & Biases, offline unless the person says otherwise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.runtime.tracking.protocol import Values, library, named, picture

if TYPE_CHECKING:
    from torch import Tensor

MODES = ("offline", "online")
#: What W&B would collect of the machine, the code and the command line by itself.
NOT_COLLECTED = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "",
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandB:
    """A run of a project, in `wandb/` of the run directory. Offline nothing is sent, until `wandb sync` is called."""

    def __init__(self, mode: str, project: str, out: Path, name: str, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its faults would be sent to its maker
        self.wandb = library("wandb", "wandb", "wandb")
        settings = self.wandb.Settings(mode=mode, **NOT_COLLECTED)
        # A run that a notebook has open already stays as it is.
        self.run = self.wandb.init(
            project=project, name=name, dir=str(out), config=dict(config), settings=settings, reinit="create_new"
        )
        self.out, self.arms = out, set[str]()

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        # W&B's own step only ever grows, over all arms; so each arm brings its steps as a figure of its own.
        axis = f"{arm}/step" if arm else "step"
        if arm not in self.arms:
            self.arms.add(arm)
            self.run.define_metric(axis, hidden=True)
            self.run.define_metric(f"{arm}/*" if arm else "*", step_metric=axis)
        self.run.log({**named(values, arm), axis: step})

    def log_image(self, name: str, image: Tensor) -> None:
        self.run.log({name: self.wandb.Image(picture(image))})

    def log_artifact(self, path: Path) -> None:
        folder = Path(self.run.dir)  # what lies there is W&B's: a link to our file would be a way to change it
        copy = shutil.copyfile(path, folder / path.name)
        self.run.save(str(copy), base_path=str(folder), policy="now")

    def close(self, failed: bool = False) -> None:
        self.run.finish(exit_code=int(failed))


def check_mode(mode: str) -> None:
    """Raise ValueError for another mode: W&B has some that would ask at the terminal."""
    if mode not in MODES:
        raise ValueError(f"`tracker.mode` must be one of {', '.join(MODES)}; got {mode!r}")
