"""The keys of the group `tracker`: where a run is followed. No torch."""

from dataclasses import dataclass

from attacks.schema.options import option


@dataclass
class NoTrackerConfig:
    """events.jsonl in the run directory only, which is always written."""

    name: str = "none"


@dataclass
class TensorBoardConfig:
    """Event files in tensorboard/ of the run directory."""

    name: str = "tensorboard"


@dataclass
class MLflowConfig:
    """An MLflow store."""

    name: str = "mlflow"
    uri: str | None = option(
        None,
        "null: mlflow.db beside the run directory; sqlite:///FILE or https://SERVER on the command line only "
        "(credentials in MLflow's own variables)",
    )
    experiment: str = option("viewproof", "the experiment's name in the store")


@dataclass
class WandBConfig:
    """Weights & Biases."""

    name: str = "wandb"
    mode: str = option("offline", "offline: wandb/ in the run directory; online on the command line only")
    project: str = option("viewproof", "the project's name")
