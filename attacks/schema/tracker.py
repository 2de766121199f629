"""The keys of the group `tracker`: where a run is followed. No torch."""

from dataclasses import dataclass

from attacks.schema.options import option


@dataclass
class NoTrackerConfig:
    """events.jsonl in the run directory only, which is always written.

    Use: the default: the report and events.jsonl are enough.
    Not: many runs that are to be compared while they go on.
    """

    name: str = "none"


@dataclass
class TensorBoardConfig:
    """Event files in tensorboard/ of the run directory.

    Use: curves of a run on this machine.
    Not: a store of many runs: mlflow.
    Source: TensorBoard.
    """

    name: str = "tensorboard"


@dataclass
class MLflowConfig:
    """An MLflow store.

    Use: a store of many runs with their settings.
    Not: a machine without the extra `mlflow`.
    Source: MLflow.
    """

    name: str = "mlflow"
    uri: str | None = option(
        None,
        "null: mlflow.db beside the run directory; sqlite:///FILE or https://SERVER on the command line only "
        "(credentials in MLflow's own variables)",
    )
    experiment: str = option("viewproof", "the experiment's name in the store")


@dataclass
class WandBConfig:
    """Weights & Biases.

    Use: a team that keeps its runs there.
    Not: numbers that must not leave the machine, unless `mode` stays offline.
    Source: Weights & Biases.
    """

    name: str = "wandb"
    mode: str = option("offline", "offline: wandb/ in the run directory; online on the command line only")
    project: str = option("viewproof", "the project's name")
