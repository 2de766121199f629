"""The keys of the group `tracker`: where a run is followed. No torch."""

from dataclasses import dataclass

from attacks.schema.options import option
from attacks.schema.secrets import masked, refuse_credentials


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


TrackerConfig = NoTrackerConfig | TensorBoardConfig | MLflowConfig | WandBConfig


def check_tracker(node: TrackerConfig) -> None:
    """Raise ValueError for a store or a mode that no tracker supports."""
    if isinstance(node, WandBConfig) and node.mode not in ("offline", "online"):  # others ask at the terminal
        raise ValueError(f"`tracker.mode` must be one of offline, online; got {node.mode!r}")
    if not isinstance(node, MLflowConfig) or node.uri is None:
        return
    scheme, _, rest = node.uri.partition("://")
    if scheme not in ("sqlite", "http", "https") or not rest.strip("/"):
        value = f"{masked(node.uri)!r} (MLflow's store of plain files is deprecated)"
        raise ValueError(f"`tracker.uri` must be sqlite:///FILE, http://SERVER or https://SERVER; got {value}")
    if scheme != "sqlite":
        refuse_credentials(node.uri, "`tracker.uri`")
