"""Executors: what maps the units of a run to processes of this machine, or to tasks of a Ray cluster. Every process
prepares the run from its directory and leaves its results there, so the bytes do not depend on the executor."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from attacks.experiment.bench import Bench, bench_of
from attacks.experiment.directory import LOCK, interrupted_run
from attacks.experiment.preparation import resume_preparation
from attacks.experiment.unit import Unit
from attacks.experiment.units import Execute, UnitOutcome, do
from attacks.runtime.command_line import print_notes
from attacks.runtime.distributed import ALONE
from attacks.runtime.extras import extra
from attacks.runtime.files import Lock
from attacks.runtime.signals import StopSignal, stoppable
from attacks.study.objective import watching_layers

#: The run ends after so many deaths of its processes without a unit that was done in between; a cluster tries a unit
#: so many times again.
DEATHS = 3
DIED = (
    f"processes of this run ended {DEATHS} times before they had done a unit: too little memory, or a crash of a "
    "library; what is done is saved"
)


class Site(NamedTuple):
    """A run directory, and what its user allows: an encoder's program, and the folder of `data.cache`."""

    out: str
    program: str | None
    cache: str | None


def processes(site: Site, count: int) -> Execute:
    """The executor of `count` processes of this machine. One that dies is replaced."""

    def execute(units: Sequence[Unit], wait: bool) -> Iterator[tuple[Unit, UnitOutcome]]:
        left, deaths = dict.fromkeys(units), 0
        while left:
            try:
                for unit, outcome in _pool(site, count, list(left), wait):
                    del left[unit]
                    deaths = 0
                    yield unit, outcome
            except BrokenProcessPool:
                deaths += 1
                if deaths == DEATHS:
                    raise ChildProcessError(DIED) from None
                print_notes(["a process of this run has ended; another one does its unit"])

    return execute


def _pool(site: Site, count: int, units: Sequence[Unit], wait: bool) -> Iterator[tuple[Unit, UnitOutcome]]:
    # spawned: torch's threads do not survive a fork
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(count, len(units)), context, _begin)
    try:
        futures = {pool.submit(in_worker, site, unit, wait): unit for unit in units}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        for child in multiprocessing.active_children():  # each writes its checkpoint
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a new process of this machine: it ignores Ctrl-C, of which its parent tells it, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def cluster(site: Site, threads: int) -> Execute:
    """The executor of a Ray cluster: the one that RAY_ADDRESS names or that runs here, else one of this machine. Each
    task has so many cores, and a GPU where there is one. Ray repeats the tasks of a process or node that dies."""

    def execute(units: Sequence[Unit], wait: bool) -> Iterator[tuple[Unit, UnitOutcome]]:
        ray = extra("ray")
        if not ray.is_initialized():
            ray.init(include_dashboard=False)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        # max_calls: a process keeps its encoder for all its tasks
        options = {"num_cpus": threads, "num_gpus": gpus, "max_retries": DEATHS, "max_calls": 0}
        task = ray.remote(**options)(in_worker)
        waiting = {task.remote(site, unit, wait): unit for unit in units}
        try:
            while waiting:
                (ready,), _ = ray.wait(list(waiting))
                yield waiting.pop(ready), ray.get(ready)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.WorkerCrashedError:
            raise ChildProcessError(DIED) from None
        finally:
            for future in waiting:
                ray.cancel(future, force=True)

    return execute


def in_worker(site: Site, unit: Unit, wait: bool) -> UnitOutcome:
    """Do a unit in a process of an executor."""
    try:
        with stoppable(Path(site.out)):
            return do(_bench(site), unit, wait)
    except StopSignal as stop:
        os._exit(stop.code)  # the checkpoint is written, and no further unit may begin


@lru_cache(maxsize=1)
def _bench(site: Site) -> Bench:
    """The run in its directory, prepared once a process, which holds the lock of the directory from then on."""
    out = Path(site.out)
    _LOCKS.append(Lock(out / LOCK))
    _LOCKS[-1].shared()
    previous = interrupted_run(out, site.program)
    if getattr(previous.run.data, "cache", None) is not None:
        previous.run.data.cache = site.cache
    preparation = resume_preparation(previous, previous.run, ALONE)
    study = preparation.study
    module = watching_layers(study.encoder, study.objective, study.members).__enter__()  # until this process ends
    return bench_of(study, module, preparation.choice.decision, preparation.place(out))


#: The locks that this process holds until it ends.
_LOCKS: list[Lock] = []
