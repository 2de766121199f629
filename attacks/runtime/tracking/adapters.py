"""Adapters to TensorBoard, MLflow and W&B. An adapter imports its library when it is created."""

import json
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attacks.runtime.decoding import decoded
from attacks.runtime.extras import extra
from attacks.runtime.tracking.events import Tracker, Values, finite, metric_leaves

Config = Mapping[str, Any]

#: MLflow reports usage over the network, and retries a dead server for minutes. Set before the import, unless the
#: environment has a value.
MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
#: MLflow's limits: parameters of one request, and characters of one parameter.
BATCH, CHARACTERS = 100, 500
#: W&B collects nothing about the machine, the code and the command line.
WANDB_SETTINGS = {
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


class TensorBoard(Tracker):
    """Event files in `tensorboard/` of the run directory, one a process. Of the artifacts it shows the pictures."""

    def __init__(self, *, out: Path, config: Config, run_id: str = "") -> None:  # noqa: ARG002
        extra("tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(out / "tensorboard"))
        text = json.dumps(config, indent=2, default=str)
        self.writer.add_text("configuration", "\n".join(f"    {line}" for line in text.splitlines()))

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        for name, value in finite(values, arm).items():
            self.writer.add_scalar(name, value, step)

    def log_artifact(self, path: Path) -> None:
        if path.suffix == ".png":
            import numpy as np

            picture, _ = decoded(path)
            self.writer.add_image(path.stem, np.asarray(picture.convert("RGB")), dataformats="HWC")

    def close(self, failed: bool = False) -> None:  # noqa: ARG002  event files have no exit status
        self.writer.close()


class MLflow(Tracker):
    """A run of an MLflow experiment, by default in a SQLite store beside the run directory."""

    def __init__(self, uri: str | None, experiment: str, *, out: Path, config: Config, run_id: str = "") -> None:
        store = uri or f"sqlite:///{(out.resolve().parent / 'mlflow.db').as_posix()}"
        artifacts = None  # a server has its own place for files
        if store.startswith("sqlite:"):  # for the SQLite store MLflow would take the working directory
            file = Path(store.removeprefix("sqlite:///")).resolve()
            artifacts = (file.parent / f"{file.stem}-artifacts").as_uri()
        for key, value in MLFLOW_SETTINGS.items():
            os.environ.setdefault(key, value)
        with warnings.catch_warnings():  # of these libraries about each other
            warnings.simplefilter("ignore")
            for module in ("sqlalchemy", "alembic") if artifacts else ():  # MLflow's own message comes late
                extra(module)
            mlflow, self.entities = extra("mlflow"), extra("mlflow.entities")
            for logger in ("mlflow", "alembic"):
                logging.getLogger(logger).setLevel(logging.WARNING)
            self.client = mlflow.MlflowClient(tracking_uri=store, registry_uri=store)
            if run_id:
                self.client.update_run(run_id, status="RUNNING")
            else:
                existing = self.client.get_experiment_by_name(experiment)
                number = existing.experiment_id if existing else self.client.create_experiment(experiment, artifacts)
                run_id = self.client.create_run(number, run_name=out.name).info.run_id
            self.run_id = run_id
        parameters = [self.entities.Param(key, str(value)[:CHARACTERS]) for key, value in metric_leaves(config)]
        for start in range(0, len(parameters), BATCH):
            self.client.log_batch(self.run_id, params=parameters[start : start + BATCH])

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        stamp = int(time.time() * 1000)
        metrics = [self.entities.Metric(name, value, stamp, step) for name, value in finite(values, arm).items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def log_artifact(self, path: Path) -> None:
        self.client.log_artifact(self.run_id, str(path))

    def close(self, failed: bool = False) -> None:
        self.client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """A W&B run in `wandb/` of the run directory. Offline, nothing is sent until `wandb sync`."""

    def __init__(self, mode: str, project: str, *, out: Path, config: Config, run_id: str = "") -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # W&B's own crashes would be reported
        wandb = extra("wandb")
        self.run = wandb.init(
            project=project,
            name=out.name,
            dir=str(out),
            config=dict(config),
            settings=wandb.Settings(mode=mode, **WANDB_SETTINGS),
            reinit="create_new",  # a notebook's open run stays as it is
            **({"id": run_id, "resume": "allow"} if run_id else {}),
        )
        self.run_id, self.arms = self.run.id, set[str]()

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        # W&B's step must grow over all arms, so an arm has a step metric for itself.
        axis = f"{arm}/step" if arm else "step"
        if arm not in self.arms:
            self.arms.add(arm)
            self.run.define_metric(axis, hidden=True)
            self.run.define_metric(f"{arm}/*" if arm else "*", step_metric=axis)
        self.run.log({**finite(values, arm), axis: step})

    def log_artifact(self, path: Path) -> None:
        folder = Path(self.run.dir)  # a copy: W&B would link to our file, and the link could change it
        copy = shutil.copyfile(path, folder / path.name)
        self.run.save(str(copy), base_path=str(folder), policy="now")

    def close(self, failed: bool = False) -> None:
        self.run.finish(exit_code=int(failed))


#: Choice of the group `tracker` -> its adapter.
ADAPTERS: dict[str, Callable[..., Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
