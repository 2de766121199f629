"""MLflow, by default in a SQLite store beside the run directory; a server only where the person names one."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.runtime.tracking.protocol import Values, flat, library, named, picture
from attacks.schema.secrets import masked, refuse_credentials

if TYPE_CHECKING:
    from torch import Tensor

#: MLflow counts its users over the network, and waits minutes for a server that is gone. Set before it is imported,
#: and only where the person has not.
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
#: As many parameters as the store takes at once, and so many characters of each.
BATCH, CHARACTERS = 100, 500


class MLflow:
    """A run of an experiment: the configuration as parameters, scalars by `arm/name`, files as artifacts."""

    def __init__(self, uri: str | None, experiment: str, out: Path, name: str, config: Mapping[str, Any]) -> None:
        store = uri or f"sqlite:///{(out.resolve().parent / 'mlflow.db').as_posix()}"
        for key, value in SETTINGS.items():
            os.environ.setdefault(key, value)
        with warnings.catch_warnings():  # of the libraries about each other; nothing a person here can mend
            warnings.simplefilter("ignore")
            # The store's library is asked for first: MLflow would speak of it in its own words, and late.
            for module in ("sqlalchemy", "alembic") if store.startswith("sqlite:") else ():
                library(module, module, "mlflow")
            mlflow = library("mlflow", "mlflow-skinny", "mlflow")
            self.entities = library("mlflow.entities", "mlflow-skinny", "mlflow")
            for logger in ("mlflow", "alembic"):
                logging.getLogger(logger).setLevel(logging.WARNING)
            self.client = mlflow.MlflowClient(tracking_uri=store, registry_uri=store)
            found = self.client.get_experiment_by_name(experiment)
            at = found.experiment_id if found else self.client.create_experiment(experiment, _artifacts(store))
            self.run: str = self.client.create_run(at, run_name=name).info.run_id
        said = [self.entities.Param(key, str(value)[:CHARACTERS]) for key, value in flat(config)]
        for start in range(0, len(said), BATCH):
            self.client.log_batch(self.run, params=said[start : start + BATCH])

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        now = int(time.time() * 1000)
        found = [self.entities.Metric(name, value, now, step) for name, value in named(values, arm).items()]
        self.client.log_batch(self.run, metrics=found)

    def log_image(self, name: str, image: Tensor) -> None:
        self.client.log_image(self.run, picture(image), artifact_file=f"{name}.png")

    def log_artifact(self, path: Path) -> None:
        self.client.log_artifact(self.run, str(path))

    def close(self, failed: bool = False) -> None:
        self.client.set_terminated(self.run, status="FAILED" if failed else "FINISHED")


def check_store(uri: str | None) -> None:
    """Raise ValueError for a store that is deprecated, unknown, or named together with a password."""
    scheme, _, rest = (uri or "sqlite:///mlflow.db").partition("://")
    if scheme not in ("sqlite", "http", "https") or not rest.strip("/"):
        raise ValueError(
            f"`tracker.uri` must be sqlite:///FILE, http://SERVER or https://SERVER; got {masked(uri or '')!r} "
            "(MLflow's store of plain files is deprecated)"
        )
    if scheme != "sqlite":
        refuse_credentials(uri or "", "`tracker.uri`")


def _artifacts(store: str) -> str | None:
    """Where files go: beside the SQLite store, whatever the working directory; on a server, where it says."""
    if not store.startswith("sqlite:"):
        return None
    file = Path(store.removeprefix("sqlite:///")).resolve()
    return (file.parent / f"{file.stem}-artifacts").as_uri()
