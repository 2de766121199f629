"""Launchers of a sweep (`-m ... hydra/launcher=NAME`): settings, GPUs of workers, jobs that are queued again."""

import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import omegaconf
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

#: Choice of `hydra/launcher` -> the extra that brings it, and the plugin in it.
NEEDS = {
    **dict.fromkeys(("cores", "joblib"), ("joblib", "hydra_joblib_launcher")),
    **dict.fromkeys(("local", "slurm", "submitit_local", "submitit_slurm"), ("submitit", "hydra_submitit_launcher")),
    **dict.fromkeys(("ray_jobs", "ray"), ("ray", "hydra_ray_launcher")),
}
#: Defaults of environment variables of the libraries: the signal that ends a job is one that a run handles, and no
#: usage is reported.
ENVIRONMENT = {"SUBMITIT_PREEMPT_SIGNAL": "USR1", "RAY_USAGE_STATS_ENABLED": "0"}
DEVICES = "CUDA_VISIBLE_DEVICES"
#: Errors of launchers about a job whose process is gone -> the cause. By name: the library may not be installed.
ENDINGS = {
    "UncompletedJobError": "the process of a job ended without a result (memory, its time, or a signal); the "
    "other jobs go on, and `viewproof compare` reads the sweep when they are done",
    "TerminatedWorkerError": "a worker was ended from outside (memory?), and joblib has ended the others",
    "WorkerCrashedError": "a worker of Ray was ended from outside (memory?)",
}
RESUME = "go on with each run by itself: python -m attacks.run resume=ITS DIRECTORY"
#: The directory of the sweep that this process has started.
_sweep_folders: list[Path] = []


class Sweep(Callback):
    """Hydra's callbacks of a sweep. Its jobs may run in other processes than the one that starts it."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Remember the directory for the index at the end; called in the process that starts the sweep."""
        _sweep_folders.append(Path(config.hydra.sweep.dir))

    def on_job_start(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002
        """Prepare the process of a job, before torch is imported."""
        own_gpu()


@contextmanager
def sweeping(index: Callable[[Path], None]) -> Iterator[None]:
    """Where the block has started a sweep, write its `index` and name the jobs without a result, however it ended.
    Raises ChildProcessError for a job whose process is gone."""
    _sweep_folders.clear()
    try:
        yield
        for sweep in _sweep_folders:
            if not any(path.is_dir() for path in sweep.glob("*")):
                raise ValueError("the sweep has no jobs: a list or a range on the command line is empty")
    except Exception as error:
        if cause := ENDINGS.get(type(error).__name__):
            raise ChildProcessError(f"{cause}; {RESUME}") from error
        raise
    finally:
        for sweep in _sweep_folders:
            index(sweep)
            for line in unfinished_jobs(sweep):
                print(line, file=sys.stderr)


def unfinished_jobs(sweep: Path) -> list[str]:
    """A line for each job of a sweep without a result: its folder is empty, as it was refused, or has a lock."""
    jobs = (path for path in sweep.glob("[!.]*") if path.is_dir() and not (path / "metrics.json").exists())
    jobs = (path for path in jobs if (path / ".lock").exists() or not any(path.iterdir()))
    return [f"no result: {path}" for path in sorted(jobs, key=lambda path: (len(path.name), path.name))]


def register_launchers() -> None:
    """Register the resolvers with which the launchers' presets compute values from `engine.threads`."""
    old = omegaconf.__version__.startswith("2.3.")  # OmegaConf 2.4 renames the function
    add = getattr(OmegaConf, "register_new_resolver" if old else "register_resolver")
    add("jobs_at_once", job_count, replace=True)
    add("cores_of_a_job", lambda threads, otherwise: threads or otherwise, replace=True)


def job_count(threads: int | None) -> int:
    """How many jobs of so many threads (None: one) fill the cores that this process may use."""
    return max(1, int(import_module("joblib").cpu_count()) // (threads or 1))


def prepare_launcher(arguments: Iterable[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment before Hydra reads the arguments. Raises ValueError where the launcher is missing."""
    for name, value in ENVIRONMENT.items():
        environment.setdefault(name, value)
    for argument in arguments:
        key, _, name = argument.partition("=")
        extra, plugin = NEEDS.get(name, ("", "")) if key == "hydra/launcher" else ("", "")
        if plugin and not _installed(f"hydra_plugins.{plugin}"):
            raise ValueError(f'`{argument}` needs the extra `{extra}`: pip install "viewproof[{extra}]"')
        if plugin and name in ("slurm", "submitit_slurm") and which("srun") is None:
            raise ValueError(f"`{argument}` needs Slurm on this machine, and there is no srun; hydra/launcher=local")


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def own_gpu(environment: MutableMapping[str, str] = os.environ) -> None:
    """Restrict a worker process of joblib to one of several GPUs, by the number of the worker, which keeps it for all
    its jobs. Slurm, submitit and Ray assign GPUs themselves."""
    worker = re.fullmatch(r"LokyProcess-(\d+)", multiprocessing.current_process().name)
    if worker and len(gpus := _gpus(environment)) > 1:
        environment[DEVICES] = gpus[(int(worker[1]) - 1) % len(gpus)]


def _gpus(environment: MutableMapping[str, str], driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if DEVICES in environment:
        return [name.strip() for name in environment[DEVICES].split(",") if name.strip()]
    return [str(number) for number in range(len(list(driver.iterdir())))] if driver.is_dir() else []


def is_queued_again(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a job of submitit, which queues it again when its time is over."""
    return "SUBMITIT_EXECUTOR" in environment


def hand_on(number: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raise the signal that stopped a job of submitit again, once its checkpoint is written."""
    if is_queued_again(environment):
        signal.raise_signal(number)
