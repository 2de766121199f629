"""Several processes, started by torchrun, compared with a single one."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import attacks.experiment.job
from attacks.runtime.distributed import World
from attacks.runtime.signals import StopSignal
from tests.experiment.test_replay import run_of as compose_run
from tests.helpers.processes import facts
from tests.helpers.runs import call
from tests.helpers.sampling import mostly_nightly

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
LAWS = """
import json, sys, torch
from attacks.runtime.distributed import join
values = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
result = {}
for turn in range(2):  # a sweep joins again
    world = join()
    mine = values.clone() * 0
    mine[list(world.share(1000))] = values[list(world.share(1000))]
    many = (values * 10 ** (3 * world.rank)).float()
    count = torch.tensor(world.rank)
    across = torch.full((2, 3), float(world.rank)).T
    world.sum(mine, many, count, across)
    result = {
        "rank": world.rank, "size": world.size, "first": world.first,
        "whole": bool(torch.equal(mine, values)), "count": int(count), "across": across.tolist(),
        "bits": hash(tuple(many.tolist())), "least": world.minimum(7 - world.rank),
        "agreed": world.agree({"from": world.rank, "none": None}),
        "sent": world.broadcast(torch.arange(3) + 10 * world.rank).tolist(),
    }
open(f"{sys.argv[1]}/{result['rank']}.json", "w").write(json.dumps(result))
"""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def torchrun(size, arguments, folder, check=True):
    return subprocess.run(
        [*TORCHRUN, str(size), *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=check,
        timeout=300,
    )


@pytest.mark.parametrize("size", mostly_nightly([2, 3], 2))
def test_collectives_give_every_process_the_same_values(size, tmp_path):
    (tmp_path / "laws.py").write_text(LAWS)
    torchrun(size, ["laws.py", str(tmp_path)], tmp_path)
    result = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    for rank, reply in enumerate(result):
        assert (reply["rank"], reply["size"], reply["first"]) == (rank, size, rank == 0)
        assert reply["whole"]
        total = sum(range(size))
        assert reply["count"] == total
        assert reply["across"] == [[total] * 2] * 3
        assert reply["least"] == 7 - size + 1
        assert reply["agreed"] == {"from": 0, "none": None}
        assert reply["sent"] == [0 + 0, 1, 2]
    assert len({reply["bits"] for reply in result}) == 1


QUICK = ["config=smoke", "attack.views=8", "evaluate.views=16"]


def run_of(folder):
    with (folder / "steps.csv").open() as file:
        lines = list(csv.DictReader(file))
    return lines, json.loads((folder / "metrics.json").read_text())


PGD = ["optimiser=pgd"]
#: Tolerance of the losses. Rounding differs with the number of processes and with the processor, and a sign flipped
#: by it moves a value by two steps; SGD takes no signs. The attack without EOT takes up to 96 steps, of which only
#: the first `COMPARABLE` are compared.
COMPARABLE = 12
RUNS = {
    "sgd": (["optimiser=sgd"], 1e-5),
    "pgd": (PGD, 1e-4),
    "pgd cvar": ([*PGD, "risk=cvar"], 1e-4),
    "pgd random defence": ([*PGD, "defence=resize_pad", "encoder.stochastic=true"], 1e-4),
    "pgd panel": ([*PGD, "defence=tte", "defence.views=2"], 1e-4),
    "pgd shared": ([*PGD, "perturbation.shared=true"], 1e-4),
    "default": ([], 1e-4),
    "default cvar": (["risk=cvar"], 1e-4),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUNS)
def test_the_number_of_processes_does_not_change_the_steps(tmp_path, name):
    extra, rel = RUNS[name]
    compare([1, 2, 4], tmp_path, [*QUICK, "data.count=3", "attack.steps=12", *extra], rel)


def compare(sizes, folder, arguments, rel):
    runs = {}
    for size in sizes:
        folder_of_size = folder / str(size)
        folder_of_size.mkdir()
        output = torchrun(size, ["-m", "attacks.run", *arguments], folder_of_size)
        (run,) = folder_of_size.glob("outputs/*/*")
        assert [p.name for p in folder_of_size.iterdir()] == ["outputs"]
        assert len(list(folder_of_size.glob("outputs/*"))) == 1
        assert output.stdout.count("report: ") == 1
        assert len(re.findall(r": 100 % ", output.stderr)) == 1  # one process prints
        assert json.loads((run / "manifest.json").read_text())["processes"] == size
        runs[size] = run_of(run)
    single, metrics = runs[1]
    for lines, result in runs.values():
        assert [line["evals"] for line in lines] == [line["evals"] for line in single]
        pairs = [pair for pair in zip(lines, single, strict=True) if int(pair[0]["step"]) < COMPARABLE]
        for line, reference in pairs:
            # A cosine near zero is the sum of numbers near 1, in float32.
            assert float(line["objective"]) == pytest.approx(float(reference["objective"]), rel=rel, abs=1e-7), line
        for arm, row in result["arms"].items():
            for name in ("cosine", "recall_at_1", "success"):
                assert row[name]["mean"] == pytest.approx(metrics["arms"][arm][name]["mean"], abs=1e-3), (arm, name)
        assert result["cost"]["forward"] == metrics["cost"]["forward"]
        assert result["cost"]["backward"] == metrics["cost"]["backward"]


def cut(arguments, folder, place, stop):
    """The stderr of two processes, stopped once an arm is at its `place`. `stop` gets the ids of torchrun and of its
    processes."""
    command = [*TORCHRUN, "2", "-m", "attacks.run", *arguments]
    children = "/proc/{0}/task/{0}/children"
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as running:
        while not list(folder.glob(place)):
            assert running.poll() is None, running.stderr.read()
            time.sleep(0.02)
        workers = [int(pid) for pid in Path(children.format(running.pid)).read_text().split()]
        stop(running.pid, workers)
        output = running.communicate(timeout=60)[1]
    assert running.returncode != 0
    return output


def kill_worker(_, workers):
    os.kill(workers[-1], signal.SIGKILL)


def end(torchrun, _):
    os.kill(torchrun, signal.SIGTERM)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_two_processes_resume_and_end_with_the_same_bytes(tmp_path, monkeypatch, capsys):
    overrides = ["config=smoke", "data.count=2", "attack.views=4", "attack.steps=4", "evaluate.views=4"]
    overrides += ["engine=fixed", "sanity=none", "checkpoint.steps=1", "evaluate.refine=0"]
    run, full = tmp_path / "run", tmp_path / "whole"
    neighbour = subprocess.Popen(
        [*TORCHRUN, "2", "-m", "attacks.run", *overrides, f"hydra.run.dir={full}"], cwd=tmp_path, env=ENVIRONMENT
    )
    cut([*overrides, f"hydra.run.dir={run}"], tmp_path, "run/checkpoint/*.eot.now.safetensors", kill_worker)
    output = cut([f"resume={run}"], tmp_path, "run/checkpoint/*.no_eot.now.safetensors", end)
    command_line = f"torchrun --standalone --nproc-per-node 2 -m attacks.run resume={run}"
    assert (
        output.count("stopped by SIGTERM") == output.count(f"stopped by SIGTERM; go on with: {command_line}\n") == 1
    )
    assert call(monkeypatch, f"resume={run}") == 1
    assert "the number of processes was 2 and is 1" in capsys.readouterr().err
    torchrun(2, ["-m", "attacks.run", f"resume={run}"], tmp_path)
    assert neighbour.wait(60) == 0
    assert facts(run) == facts(full)


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "python -m attacks.run"),
        ({"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "python -m attacks.run"),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "torchrun --standalone --nproc-per-node 2 -m attacks.run"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "torchrun with the same flags, -m attacks.run"),
    ],
)
def test_a_stopped_run_prints_the_command_with_its_number_of_processes(monkeypatch, tmp_path, variables, command):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "manifest.json").touch()
    assert str(StopSignal(signal.SIGTERM, tmp_path)) == f"stopped by SIGTERM; go on with: {command} resume={tmp_path}"


@pytest.mark.slow
def test_the_checkpoint_is_deleted_after_all_processes_have_read_it(monkeypatch, tmp_path):
    order, write = [], attacks.experiment.job.write_rows
    monkeypatch.setattr(World, "meet", lambda _: order.append((tmp_path / "checkpoint").exists()))
    spy = lambda *table: (order.append("written"), write(*table))  # noqa: E731
    monkeypatch.setattr(attacks.experiment.job, "write_rows", spy)
    attacks.experiment.job.job(compose_run("attack.steps=1", "data.count=1"), tmp_path, "smoke", [])
    assert order == [True, "written"] and not (tmp_path / "checkpoint").exists()


def test_the_loss_of_a_process_gives_a_one_line_error_in_the_others(monkeypatch):
    def lose(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:26029")

    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lose)
    world, vector = World(0, 2), torch.ones(2)
    for ask in (lambda: world.sum(vector), lambda: world.agree("a"), lambda: world.broadcast(vector), world.meet):
        with pytest.raises(ConnectionError, match=r"^another process of this run has ended.* resume=[^\n]*$"):
            ask()
    monkeypatch.setattr(dist, "broadcast", lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):  # an internal error is not replaced
        world.broadcast(vector)


@pytest.mark.slow
def test_an_error_is_printed_by_the_process_that_raises_it(tmp_path):
    output = torchrun(2, ["-m", "attacks.run", "config=smoke", "attack.steps=0"], tmp_path, check=False)
    assert output.returncode != 0
    assert output.stderr.count("error: `attack.steps` must be at least 1") == 1
    assert not list(tmp_path.glob("outputs/*/*/metrics.json"))


@pytest.fixture
def follower(monkeypatch):
    """This process as the second of two, with the values that torchrun sets."""
    for name, value in {"PROCESSES": 2, "RANK": 1, "PAUSE": 0.0}.items():
        monkeypatch.setattr(f"attacks.run.{name}", value)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[[], []], [["-m"], []], [[], ["-m"]]], ids=str)
def test_a_second_process_writes_nothing_and_names_its_rank(monkeypatch, capsys, tmp_path, follower, flags):
    monkeypatch.chdir(tmp_path)
    first_flags, last_flags = flags
    folders = [f"hydra.{mode}.dir={tmp_path}/theirs" for mode in ("run", "sweep")]
    assert call(monkeypatch, *first_flags, "config=smoke", "attack.steps=0", *folders, *last_flags) == 1
    output = capsys.readouterr()
    assert output.err.startswith("process 1: error: `attack.steps` must be at least 1")
    assert output.err.count("\n") == 1 and not output.out
    assert not list(tmp_path.iterdir())


def test_a_second_process_resumes_a_run_like_the_first(monkeypatch, tmp_path, follower):
    calls = []
    monkeypatch.setattr("attacks.experiment.job.resume", lambda *variables: (calls.append(variables), {})[1])
    assert call(monkeypatch, f"resume={tmp_path}") == 0
    assert calls == [(tmp_path, [])]


@pytest.mark.slow
def test_an_error_in_a_sweep_of_several_processes_ends_the_sweep(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("attacks.run.PROCESSES", 2)
    folder = f"hydra.sweep.dir={tmp_path}"
    assert call(monkeypatch, "-m", "config=smoke", "attack.steps=0,-1", folder) == 1
    assert capsys.readouterr().err.count("error: ") == 1
    assert (tmp_path / "0").exists() and not (tmp_path / "1").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["-m"]], ids=str)
def test_an_internal_error_ends_one_of_several_processes_with_its_traceback(monkeypatch, capsys, tmp_path, mode):
    def fault(config):
        raise RuntimeError("not the person's")

    monkeypatch.setattr("attacks.run.PROCESSES", 2)
    monkeypatch.setattr("attacks.schema.validate.validate", fault)
    folders = [f"hydra.{mode}.dir={tmp_path}" for mode in ("run", "sweep")]
    assert call(monkeypatch, *mode, "config=smoke", "seed=1,2" if mode else "seed=1", *folders) == 1
    output = capsys.readouterr().err
    assert output.count("Traceback") == output.count("RuntimeError: not the person's") == 1


def test_a_rank_without_a_world_size_is_ignored(tmp_path):
    text = "import attacks.run as run; assert (run.PROCESSES, run.RANK) == (1, 0)"
    environment = {k: v for k, v in os.environ.items() if k != "WORLD_SIZE"} | {"RANK": "1"}
    subprocess.run([sys.executable, "-c", text], cwd=ROOT, env=environment, check=True)
