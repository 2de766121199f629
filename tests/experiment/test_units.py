"""Several processes on the pictures of one run, and pictures that fail."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import skimage.data
import torch
from PIL import Image

import attacks.experiment.job
import attacks.experiment.units
from attacks import verify
from attacks.eot.faults import NotFinite
from attacks.experiment.unit import Unit
from tests.helpers.processes import PATIENCE, exit_code, facts, started, unique_words
from tests.helpers.runs import call

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["config=smoke", "data=folder", "data.size=32", "attack.steps=1", "attack.views=1", "evaluate.views=2"]
SMALL += ["evaluate.refine=0", "engine=fixed", "engine.threads=1", "sanity=none", "transforms=eot2d"]
SMALL += ["data.count=null"]


def pictures(folder, count):
    """`count` different parts of a photograph."""
    folder.mkdir()
    photo = Image.fromarray(skimage.data.chelsea())
    for at in range(count):
        x, y = 20 * (at % 20), 20 * (at // 20)
        photo.crop((x, y, x + 40, y + 40)).save(folder / f"{at:03d}.png")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [8, 1])
def test_four_processes_of_which_two_are_killed_give_the_table_of_one_process(tmp_path, batch):
    overrides = [*SMALL, f"data.path={pictures(tmp_path / 'in', 200)}", f"evaluate.batch={batch}"]
    single, shared = tmp_path / "alone", tmp_path / "shared"
    assert exit_code(started([*overrides, f"hydra.run.dir={single}"], tmp_path / "alone.log")) == 0
    workers = [started([*overrides, f"hydra.run.dir={shared}"], tmp_path / "0.log")]
    while not (shared / "manifest.json").exists():
        time.sleep(0.01)
    workers += [started([f"resume={shared}"], tmp_path / f"{i}.log") for i in range(1, 4)]
    for victim, target_count in ((workers[2], 24), (workers[0], 80)):
        while len(list(shared.glob("checkpoint/??????-??????.safetensors"))) * batch < target_count:
            time.sleep(0.02)
            assert any(worker.exitcode is None for worker in workers)
        victim.kill()
    codes = [exit_code(worker) for worker in workers]
    assert codes == [-9, 0, -9, 0], [(tmp_path / f"{i}.log").read_text() for i in range(4)]
    assert facts(shared) == facts(single)
    names = json.loads((shared / "metrics.json").read_text())["queries"]
    assert sorted(names) == [f"{at:03d}.png" for at in range(200)] and len(set(names)) == 200
    output = "".join((tmp_path / f"{i}.log").read_text() for i in range(4))
    assert output.count("another process has made the tables") == 1


@pytest.fixture
def few_pictures(shared_runs):
    """Words of a run of twelve pictures, and its files."""
    words = [*SMALL, "evaluate.batch=1", "attack.steps=20"]

    def make(folder):
        arguments = [*words, f"data.path={pictures(folder / 'in', 12)}", f"hydra.run.dir={folder / 'run'}"]
        assert exit_code(started(arguments, folder / "log")) == 0

    folder = shared_runs.folder("twelve", make)
    return [*words, f"data.path={folder / 'in'}"], facts(folder / "run")


def count_units(folder):
    return len(list(folder.glob("checkpoint/??????-??????.safetensors")))


def workers_of(process):
    """The processes that a run has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    return [int(pid) for pid, name in names.items() if b"spawn_main" in name]


@pytest.mark.nightly
def test_a_worker_that_is_killed_is_replaced_and_the_bytes_are_those_of_one_process(few_pictures, tmp_path):
    words, expected = few_pictures
    run, log = tmp_path / "run", tmp_path / "log"
    process = at_work([*words, "workers=3"], run, log)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert facts(run) == expected
    assert "another one does its unit" in log.read_text()


@pytest.mark.nightly
def test_a_run_of_several_workers_that_is_stopped_goes_on_by_the_same_command(few_pictures, tmp_path):
    words, expected = few_pictures
    run, log = tmp_path / "run", tmp_path / "log"
    process = at_work([*words, "workers=2"], run, log)
    workers = workers_of(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM, log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert exit_code(started([*words, f"hydra.run.dir={run}"], log)) == 0, log.read_text()
    assert "note: going on with the run in" in log.read_text()
    assert facts(run) == expected


@pytest.mark.slow
def test_shards_in_any_order_give_the_bytes_of_one_process(few_pictures, tmp_path):
    words, expected = few_pictures
    run, log = tmp_path / "run", tmp_path / "log"
    for shard in (2, 0, 1):
        assert not (run / "metrics.json").exists()
        command_line = [*words, f"shard={shard}/3", f"hydra.run.dir={run}"]
        if shard == 0:  # killed, and started again
            process = started(command_line, log)
            while count_units(run) < 6:
                assert process.exitcode is None, log.read_text()
                time.sleep(0.02)
            process.kill()
            exit_code(process)
        assert exit_code(started(command_line, log)) == 0, log.read_text()
    assert facts(run) == expected


@pytest.fixture
def two_nodes(monkeypatch):
    """A Ray cluster of two nodes on this machine, the second of which can be removed."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield lambda: cluster.remove_node(second, allow_graceful=False)
    cluster.shutdown()


@pytest.mark.launchers
@pytest.mark.parametrize("victim", ["worker", "node"])
def test_tasks_of_a_ray_cluster_that_loses_a_worker_or_a_node_give_the_bytes_of_one_process(
    few_pictures, tmp_path, two_nodes, victim
):
    words, expected = few_pictures
    run, log = tmp_path / "run", tmp_path / "log"
    process = at_work([*words, "workers=ray"], run, log)
    if victim == "node":
        two_nodes()
    else:
        subprocess.run(["pkill", "-9", "-n", "-f", "ray::in_worker"], check=True)
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert facts(run) == expected


def at_work(words, run, log):
    """A run in a process of its own, which may start others, with two of its units done."""
    command = [sys.executable, "-m", "attacks.run", *unique_words(words), f"hydra.run.dir={run}"]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)
    while count_units(run) < 2:
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    return process


@pytest.fixture
def attack_unit(monkeypatch, tmp_path):
    """A function that runs an attack on `count` pictures, of which those in `failing` raise the error given there:
    its exit code and directory."""

    def start(count, *overrides, failing=None):
        path, run = pictures(tmp_path / "in", count), tmp_path / "run"
        with monkeypatch.context() as patch:
            spoil(patch, failing or {})
            return call(patch, *SMALL, f"data.path={path}", *overrides, f"hydra.run.dir={run}"), run

    return start


DISK_FULL = OSError("the disk is full")
NAN = NotFinite("NaN begins at lens")


def spoil(monkeypatch, errors):
    """As if some pictures could not be attacked."""
    real = attacks.experiment.units.attack_unit

    def attack_unit(bench, unit):
        rows = bench.study.queries.names[unit.start : unit.stop]
        for name in rows:
            if name in errors:
                raise errors[name]
        return real(bench, unit)

    monkeypatch.setattr(attacks.experiment.units, "attack_unit", attack_unit)


@pytest.mark.slow
def test_pictures_that_fail_are_retried_alone_then_reported(attack_unit, capsys):
    """One by its numbers, one because memory ran out outside of a pass."""
    memory = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes")
    code, run = attack_unit(5, "evaluate.batch=3", failing={"001.png": NAN, "004.png": memory})
    output = capsys.readouterr()
    beginning = "error: 2 pictures failed, and no table has 001.png"
    assert code == 1 and output.err.splitlines()[-1].startswith(beginning)
    assert "2 pictures failed, and no table has 001.png" in output.out
    content = json.loads((run / "metrics.json").read_text())
    assert content["queries"] == ["000.png", "002.png", "003.png"]
    first, second = content["failed"]
    assert first == {"picture": 1, "name": "001.png", "reason": str(NAN)}
    assert second["name"] == "004.png" and second["reason"].startswith("memory ran out; make the pictures smaller")
    for name in ("001.png", "004.png"):
        assert name not in (run / "per_image.csv").read_text() and name in (run / "report.html").read_text()
        assert not (run / "pictures" / "eot" / name).exists()
    assert verify(run, 1).passed


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_failing_pictures_at_the_beginning_do_not_end_a_run(attack_unit, batch):
    overrides = ["sanity=short", f"evaluate.batch={batch}"]
    code, run = attack_unit(3, *overrides, failing={"000.png": NAN, "001.png": NAN})
    assert code == 1
    content = json.loads((run / "metrics.json").read_text())
    assert content["queries"] == ["002.png"] and [worker["picture"] for worker in content["failed"]] == [0, 1]
    (check,) = content["sanity"]["checks"]
    assert check["verdict"] == "skipped" and "first picture" in check["words"]
    assert "no check of the attack was made" in (run / "report.html").read_text()


@pytest.mark.slow
def test_resuming_a_run_whose_pictures_all_failed_repeats_the_error(attack_unit, monkeypatch, capsys):
    code, run = attack_unit(2, failing={"000.png": NAN, "001.png": NAN})
    first = capsys.readouterr().err.splitlines()[-1]
    assert (code, call(monkeypatch, f"resume={run}")) == (1, 1)
    assert first == "error: none of the 2 pictures could be attacked; 000.png: NaN begins at lens"
    assert capsys.readouterr().err.splitlines()[-1] == first
    assert not (run / "metrics.json").exists()


@pytest.mark.slow
def test_any_other_error_ends_the_run_and_a_missing_file_of_its_checkpoint_is_recreated(
    tmp_path, attack_unit, monkeypatch, capsys
):
    code, run = attack_unit(3, "evaluate.batch=1", failing={"002.png": DISK_FULL})
    assert code == 1 and capsys.readouterr().err.splitlines()[-1] == "error: the disk is full"
    reference, path = tmp_path / "whole", f"data.path={tmp_path / 'in'}"
    assert call(monkeypatch, *SMALL, path, "evaluate.batch=1", f"hydra.run.dir={reference}") == 0
    (run / "checkpoint" / "000000-000001.safetensors").unlink()
    assert call(monkeypatch, f"resume={run}") == 0
    assert json.loads((run / "metrics.json").read_text())["failed"] == []
    assert facts(run) == facts(reference)


@pytest.mark.slow
@pytest.mark.parametrize("late", ["at its beginning", "at work"])
def test_a_process_that_joins_as_the_run_ends_leaves_no_files(attack_unit, monkeypatch, capsys, late):
    code, run = attack_unit(3, "evaluate.batch=1", failing={"000.png": DISK_FULL})
    assert code == 1

    def exit_code(*arguments):
        """Another process has ended the run meanwhile."""
        (run / "metrics.json").write_text("{}")
        shutil.rmtree(run / "checkpoint")
        return real(*arguments)  # which recreates the folder, or does not find it

    start, work = (attacks.experiment.job, "_begin"), (attacks.experiment.units, "attack_unit")
    target = start if late == "at its beginning" else work
    real = getattr(*target)
    monkeypatch.setattr(*target, exit_code)
    assert call(monkeypatch, f"resume={run}") == 0
    assert "another process has made the tables" in capsys.readouterr().err
    assert not (run / "checkpoint").exists()


def test_every_unit_has_its_own_seed():
    seeds = [unit.seed(3) for unit in (Unit(0, 4, 0), Unit(4, 8, 1), Unit(4, 5, 1, alone=True))]
    assert seeds[0] == 3 and len(set(seeds)) == 3
    assert torch.Generator().manual_seed(seeds[2])


@pytest.mark.slow
def test_a_part_that_fails_is_reported_and_left_out(attack_unit, monkeypatch, capsys):
    def break_section(*_):
        raise NAN

    monkeypatch.setattr("attacks.experiment.sections.judged.DeploymentSection.rows", break_section)
    code, run = attack_unit(2, "evaluate.deploy=1")
    output = capsys.readouterr()
    assert code == 1
    assert output.err.splitlines()[-1].startswith("error: A part failed, and no table has the part deployment (NaN")
    assert "no table has the part deployment (NaN begins at lens)" in output.out
    content = json.loads((run / "metrics.json").read_text())
    assert content["deployment"] is None and content["failed_parts"] == {"deployment": "NaN begins at lens"}
    assert len(content["queries"]) == 2 and "the part deployment (NaN" in (run / "report.html").read_text()
