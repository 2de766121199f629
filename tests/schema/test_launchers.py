"""Sweeps on all launchers: the same runs as one after the other, and a failing job does not stop the others.

Those that need an extra are marked `launchers`.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from attacks.run import CONFIGS
from attacks.runtime.tables import read_rows
from attacks.schema import launchers
from tests.helpers.processes import without_times

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SMALL = ["data.count=1", "attack.views=1", "evaluate.views=2", "evaluate.refine=0"]
FOUR = [*SMALL, "attack.steps=1", "seed=0,1", "perturbation.eps=8/255,16/255"]
#: Launcher -> settings for two jobs at once on this machine, and the required module.
CHOICES = {
    "cores": (["hydra.launcher.n_jobs=2"], "hydra_plugins.hydra_joblib_launcher"),
    "local": (["engine.threads=1"], "hydra_plugins.hydra_submitit_launcher"),
    "ray_jobs": (["hydra.launcher.ray.remote.num_gpus=0"], "hydra_plugins.hydra_ray_launcher"),
}
ALL_LAUNCHERS = pytest.mark.parametrize("name", CHOICES)
LAUNCHERS = pytest.mark.launchers


def command(folder, *arguments):
    return [sys.executable, "-m", "attacks.run", "-m", "config=smoke", f"hydra.sweep.dir={folder}", *arguments]


def sweep(folder, *arguments, check=True):
    """Run a sweep into `folder`; the finished process."""
    folder.mkdir()
    options = {"cwd": folder, "env": ENVIRONMENT, "capture_output": True, "text": True}
    return subprocess.run(command(folder, *arguments), check=check, timeout=300, **options)


def launcher_words(name):
    settings, plugin = CHOICES[name]
    pytest.importorskip(plugin)
    return [f"hydra/launcher={name}", *settings]


def results(folder):
    """metrics.json of the runs of a sweep, by job, without times."""
    files = folder.glob("*/metrics.json")
    return {path.parent.name: without_times(json.loads(path.read_text())) for path in files}


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "sweep"
    sweep(folder, *FOUR)
    return results(folder)


@LAUNCHERS
@pytest.mark.parametrize("name", ["cores", "local"])
def test_four_parallel_runs_equal_four_sequential_runs(name, sequence, tmp_path):
    folder = tmp_path / "sweep"
    output = sweep(folder, *launcher_words(name), *FOUR)
    assert f"sweep: {folder}/index.html" in output.stdout
    assert results(folder) == sequence
    assert [row["run"].partition(":")[0] for row in read_rows(folder / "index.csv")] == list("0123")
    assert len({json.dumps(run["arms"]) for run in sequence.values()}) == 4  # so that the comparison can fail


def test_only_folders_of_jobs_are_said_to_have_no_result(tmp_path):
    for name in ("0/metrics.json", "0/.lock", "1/.lock", "mlflow-artifacts/1/a.png", ".submitit/1/log", "notes/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "2").mkdir()  # refused before it was begun
    assert launchers.unfinished_jobs(tmp_path) == [f"no result: {tmp_path}/{number}" for number in (1, 2)]


@LAUNCHERS
@ALL_LAUNCHERS
def test_failed_job_is_named_and_the_others_continue(name, tmp_path):
    folder = tmp_path / "sweep"
    output = sweep(folder, *launcher_words(name), *SMALL, "attack.steps=1,0,2", check=False)
    assert output.returncode == 1
    assert sorted(results(folder)) == ["0", "2"]
    assert f"no result: {folder}/1\n" in output.stderr and output.stderr.count("no result: ") == 1
    assert "error: `attack.steps` must be at least 1; got 0" in output.stderr
    assert "Traceback" not in output.stderr
    assert [row["run"].partition(":")[0] for row in read_rows(folder / "index.csv")] == ["0", "2"]


@LAUNCHERS
def test_timed_out_submitit_job_is_requeued_and_resumed(tmp_path):
    overrides = [*SMALL, "attack.steps=30"]
    sweep(tmp_path / "whole", *overrides, "engine.threads=1")  # as those of "local"
    cut = tmp_path / "cut"
    cut.mkdir()
    process = subprocess.Popen(command(cut, *launcher_words("local"), *overrides), cwd=cut, env=ENVIRONMENT)
    while not (cut / "0" / "manifest.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    (controller,) = (path.name for path in (cut / ".submitit").iterdir() if path.name.isdigit())
    (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR1)
    code = process.wait(300)
    log = "".join(path.read_text() for path in sorted((cut / ".submitit" / controller).glob("*_log.*")))
    assert code == 0, log
    assert "Requeued job" in log
    assert results(cut) == results(tmp_path / "whole")


def test_submitit_alone_gets_the_signal(monkeypatch):
    numbers = []
    monkeypatch.setattr(signal, "raise_signal", numbers.append)
    launchers.hand_on(signal.SIGUSR1, {})
    assert numbers == []
    launchers.hand_on(signal.SIGUSR1, {"SUBMITIT_EXECUTOR": "local"})
    assert numbers == [signal.SIGUSR1]


@pytest.mark.parametrize("name", launchers.ENDINGS)
def test_lost_job_process_gives_a_one_sentence_error(name):
    with pytest.raises(ChildProcessError, match="resume=ITS DIRECTORY"), launchers.sweeping(print):
        raise type(name, (Exception,), {})("a page of text")
    with pytest.raises(RuntimeError, match="ours"), launchers.sweeping(print):
        raise RuntimeError("ours")


@pytest.mark.parametrize("name", launchers.NEEDS)
def test_missing_launcher_error_names_its_extra(monkeypatch, name):
    preset, extra = CONFIGS / "hydra" / "launcher" / f"{name}.yaml", launchers.NEEDS[name][0]
    assert not preset.exists() or f"viewproof[{extra}]" in preset.read_text()
    monkeypatch.setattr(launchers, "_installed", lambda module: False)
    with pytest.raises(ValueError, match=rf"`hydra/launcher={name}` needs the extra `{extra}`: pip install"):
        launchers.prepare_launcher(["-m", f"hydra/launcher={name}"], {})
    environment = {"SUBMITIT_PREEMPT_SIGNAL": "USR2"}
    launchers.prepare_launcher([f"seed={name}", "hydra/launcher=basic"], environment)
    assert environment == launchers.ENVIRONMENT | {"SUBMITIT_PREEMPT_SIGNAL": "USR2"}
    monkeypatch.setattr(launchers, "_installed", lambda module: True)
    monkeypatch.setattr(launchers, "which", lambda name: None)
    with pytest.raises(ValueError, match="no srun") if "slurm" in name else nullcontext():
        launchers.prepare_launcher([f"hydra/launcher={name}"], {})


def visible_gpus(monkeypatch, name, gpus):
    """The GPUs that a process of this name sees, of those that are visible."""
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(name=name))
    environment = {launchers.DEVICES: gpus}
    for _ in range(2):  # its next job, too
        launchers.own_gpu(environment)
    return environment[launchers.DEVICES]


@pytest.mark.parametrize("gpus", ["0,1,2,3", "GPU-8f3a, GPU-11bc,GPU-90de", "5,7"])
def test_each_joblib_worker_has_its_own_gpu_for_all_jobs(monkeypatch, gpus):
    names = [name.strip() for name in gpus.split(",")]
    assert [visible_gpus(monkeypatch, f"LokyProcess-{1 + i}", gpus) for i in range(2 * len(names))] == 2 * names
    assert visible_gpus(monkeypatch, "SpawnPoolWorker-1", gpus) == gpus
    assert visible_gpus(monkeypatch, "LokyProcess-2", "0") == "0"


def test_gpus_are_counted_without_the_environment_variable(tmp_path):
    for number in range(3):
        (tmp_path / f"0000:{number:02}:00.0").mkdir()
    assert launchers._gpus({}, tmp_path) == ["0", "1", "2"] and launchers._gpus({}, tmp_path / "none") == []


@pytest.mark.parametrize(("cores", "threads", "jobs"), [(8, None, 8), (8, 3, 2), (2, 16, 1)])
def test_number_of_jobs_follows_from_cores_and_threads(monkeypatch, cores, threads, jobs):
    monkeypatch.setattr(launchers, "import_module", lambda _: SimpleNamespace(cpu_count=lambda: cores))
    assert launchers.job_count(threads) == jobs
