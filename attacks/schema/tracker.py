"""The keys of the group `tracker`: where a run is followed. No torch here, as in `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING


@dataclass
class NoTracker:
    name: str = "none"  # events.jsonl in the run directory is written in any case


@dataclass
class TensorBoard:
    name: str = "tensorboard"  # its files go to tensorboard/ in the run directory


@dataclass
class MLflow:
    name: str = "mlflow"
    uri: str | None = None  # sqlite:///FILE or https://SERVER; null: mlflow.db beside the run directory
    experiment: str = MISSING


@dataclass
class WandB:
    name: str = "wandb"
    mode: str = MISSING  # offline writes to the run directory; online sends
    project: str = MISSING


TRACKERS: dict[str, type] = {"none": NoTracker, "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
