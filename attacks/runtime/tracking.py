"""The trackers of a run: events.jsonl in every run directory, and adapters to TensorBoard, MLflow and W&B.

Each process of a run writes a journal. The process that makes the tables composes events.jsonl from all journals.
"""

import json
import logging
import math
import os
import secrets
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TextIO

from attacks.runtime.decoding import decoded
from attacks.runtime.extras import extra
from attacks.runtime.files import Lock, atomic, named_where_unwritten, write_json
from attacks.runtime.untrusted import read_untrusted, word
from attacks.schema.secrets import masked
from attacks.schema.tracker import TrackerConfig, check_tracker

SCHEMA = 1
JOURNALS = "journal.*.jsonl"
#: Files of the run directory that are logged at its end, where they exist.
PAGES = ("views.png", "report.html")
#: Characters of an error that a warning shows.
LONGEST = 300
#: In the folder of the checkpoint: the configuration of the run's tracker, and the id of the run in its library.
STATE_FILE = "tracker.json"
#: MLflow reports usage over the network, and retries a dead server for minutes. Defaults of the environment.
MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
#: MLflow's limits: parameters of one request, and characters of one parameter.
BATCH, CHARACTERS = 100, 500
#: W&B collects nothing about the machine, the code and the command line.
WANDB_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("disable_code", "disable_git", "disable_job_creation", "silent"), True),
    **dict.fromkeys(("x_disable_machine_info", "x_disable_meta", "x_disable_stats"), True),
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
    "console": "off",
    "host": "",
}
#: Scalars by name; None where a value is unknown.
Values = Mapping[str, float | None]
Config = Mapping[str, Any]


class Tracker(Protocol):
    """Receives the course of a run. It returns nothing, so it cannot change the run. With `run_id` another process
    continues the same run of the library; empty where the library needs none."""

    run_id: str = ""

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Scalars of one step of an arm."""

    def log_artifact(self, path: Path) -> None:
        """A file of the run directory."""

    def close(self, failed: bool = False) -> None:
        """The end of the run. `failed`: it ended with an exception."""


def finite(values: Values, arm: str = "") -> dict[str, float]:
    """The finite values, by `arm/name`."""
    prefix = f"{arm}/" if arm else ""
    return {f"{prefix}{name}": float(x) for name, x in values.items() if x is not None and math.isfinite(x)}


def metric_leaves(content: Config, separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, by the names on the way."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from metric_leaves(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


class JsonLines(Tracker):
    """Appends to an open file. Equal runs write equal lines except for `seconds`, counted from the start of this
    object. A `lock`, which says that its process is at work, is held until the file is closed."""

    def __init__(self, file: TextIO, lock: Lock | None = None) -> None:
        self.file, self.lock, self.start = file, lock, time.perf_counter()
        if lock is not None:
            lock.exclusive()

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Every name is written; a value that is unknown or not finite is null."""
        self.write(event="scalars", arm=arm, step=step, values=dict.fromkeys(values) | finite(values))

    def log_artifact(self, path: Path) -> None:
        self.write(event="artifact", path=path.name)

    def close(self, failed: bool = False) -> None:
        """A journal has an end where its process failed; events.jsonl always has one."""
        try:
            if failed or self.lock is None:
                self.write(event="end", failed=failed)
        finally:
            self.file.close()
            if self.lock is not None:
                self.lock.close()

    def write(self, **event: Any) -> None:
        line = json.dumps(event | {"seconds": round(time.perf_counter() - self.start, 3)}, allow_nan=False)
        with named_where_unwritten(Path(self.file.name)):
            self.file.write(line + "\n")
            self.file.flush()


def journal(folder: Path) -> JsonLines:
    """A new journal in `folder`, in the order in which processes begin. Its lock is held until it is closed, or its
    process ends. For a process that holds the lock of the tables."""
    path = folder / f"journal.{len(list(folder.glob(JOURNALS))):04d}.{secrets.token_hex(4)}.jsonl"
    lines = JsonLines(path.open("x", encoding="utf-8", newline="\n"), Lock(path))
    lines.write(event="start", schema=SCHEMA)
    return lines


@contextmanager
def event_file(folder: Path, out: Path) -> Iterator[JsonLines]:
    """Within the block events.jsonl in `out`, which appears at its end: the lines of all journals in `folder`, but
    none that is cut because its process was killed. Waits until other processes have closed theirs."""
    with atomic(out / "events.jsonl") as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for path in sorted(folder.glob(JOURNALS)):
            with Lock(path) as lock:
                if not lock.exclusive():
                    print(f"note: another process of the run in {out} has not ended; waiting", file=sys.stderr)
                    lock.exclusive(wait=True)
                lines = path.read_bytes()
            file.write(lines[: lines.rfind(b"\n") + 1].decode(errors="replace"))
        yield JsonLines(file)


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


class Trackers(AbstractContextManager["Trackers"]):
    """Several trackers as one; a context manager that closes them, after an exception too. One of a library that
    fails is dropped with one warning, and the run continues. The journal becomes events.jsonl, a result, so a failure
    to write it is an error. `others` is None where none was started, or all were closed."""

    def __init__(self, events: Tracker | None = None, others: Mapping[str, Tracker] | None = None) -> None:
        self.events, self.others = events, None if others is None else dict(others)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind is not None else nullcontext():  # the first error matters
            self.close(failed=kind is not None)

    def log_scalars(self, *scalars: Any) -> None:
        self._forward("log_scalars", *scalars)

    def log_artifact(self, path: Path) -> None:
        self._forward("log_artifact", path)

    def close(self, failed: bool = False) -> None:
        try:
            self._forward("close", failed)
        finally:
            self.events, self.others = None, None

    @contextmanager
    def ending(self, start: Callable[[], Mapping[str, Tracker]], folder: Path, out: Path) -> Iterator["Trackers"]:
        """Within the block the trackers for the end of the run, which are then closed; events.jsonl appears. `start`
        is called where this process has started none; if it fails, a warning. `folder` has the journals."""
        if self.events is not None:
            self.events.close()
            self.events = None
        with event_file(folder, out) as events:
            if self.others is None:
                try:
                    self.others = dict(start())
                except ValueError as error:
                    print(f"warning: the end of the run is in no tracker: {error}", file=sys.stderr)
            with Trackers(events, self.others) as trackers:
                self.others = None
                yield trackers

    def _forward(self, method: str, *arguments: Any) -> None:
        adapters = self.others or {}
        for name, tracker in list(adapters.items()):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                del adapters[name]
                reason = one_line(error)
                print(f"warning: tracker={name} failed and is dropped, the run continues: {reason}", file=sys.stderr)
                with suppress(Exception):
                    tracker.close(failed=True)
        if self.events is not None:
            getattr(self.events, method)(*arguments)


def started(node: TrackerConfig, folder: Path, out: Path, config: Config) -> dict[str, Tracker]:
    """Start the tracker of the run in `out`, if it has one, and store in `folder` which it is. Where an earlier
    process has stored the same, its run in the library goes on. `config` is logged without its group `tracker`.
    Raises ValueError: a missing library, a value outside its choices, or a tracker that cannot be started."""
    check_tracker(node)
    keys = {key: value for key, value in vars(node).items() if key != "name"}
    logged_config = {key: value for key, value in config.items() if key != "tracker"}
    state = tracker_state(folder)
    run_id = word(state.get("run_id")) if state.get("tracker") == asdict(node) else ""
    trackers: dict[str, Tracker] = {}
    if node.name in ADAPTERS:
        try:
            trackers[node.name] = ADAPTERS[node.name](**keys, out=out, config=logged_config, run_id=run_id)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"`tracker={node.name}` could not be started: {one_line(error)}") from error
    run_id = trackers[node.name].run_id if trackers else ""
    write_json(folder / STATE_FILE, {"tracker": asdict(node), "run_id": run_id})
    return trackers


def tracker_state(folder: Path) -> Config:
    """What `started` has stored in a folder, if anything."""
    return read_untrusted(folder / STATE_FILE) if (folder / STATE_FILE).exists() else {}


def log_step(tracker: Tracker | Trackers, line: Any, batch: int = 0) -> None:
    """One step of an arm, a line of `steps.csv`. Every batch counts from 0, so each later batch is an arm."""
    values = {name: getattr(line, name) for name in ("objective", "held_out", "snr", "evals")}
    tracker.log_scalars(line.step, values, f"{line.arm}/batch {batch}" if batch else line.arm)


def log_end(tracker: Tracker | Trackers, content: Config, out: Path) -> None:
    """The tables of metrics.json as scalars, such as `final/eot/success/mean`, and the pages."""
    wide = content.get("wide") or {}
    for title, arms in (("final", content["arms"]), ("final wide", wide.get("arms", {}))):
        for arm, row in arms.items():
            leaves = metric_leaves(row, "/")
            numbers = {name: float(value) for name, value in leaves if isinstance(value, int | float)}
            tracker.log_scalars(0, numbers, f"{title}/{arm}")
    for name in PAGES:
        if (out / name).is_file():
            tracker.log_artifact(out / name)


def one_line(error: Exception) -> str:
    """An error as one line of bounded length, credentials masked: it may quote the address of a proxy."""
    text = masked(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
