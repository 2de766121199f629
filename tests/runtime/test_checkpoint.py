"""Stored results of tasks, and the state of a running one."""

import os
import pickle
import shlex
import signal
import sys
import threading

import pytest
import torch

import attacks.runtime.checkpoint
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.signals import SIGNALS, StopSignal, stoppable


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path, "key", seconds=None, steps=2)


def test_a_task_has_one_computation(checkpoint, tmp_path):
    calls = []
    result = [checkpoint.once("task", lambda: (calls.append(1), torch.ones(2))[1]) for _ in range(3)]
    assert calls == [1] and all(torch.equal(value, torch.ones(2)) for value in result)
    assert [path.name for path in tmp_path.iterdir()] == ["task.safetensors"]


def test_files_of_another_run_are_refused(checkpoint, tmp_path):
    checkpoint.once("task", lambda: 1)
    with pytest.raises(ValueError, match="another run"):
        Checkpoint(tmp_path, "other").once("task", lambda: 2)


@pytest.mark.parametrize("harm", ["cut", "copied"])
def test_a_damaged_task_is_done_again_with_a_note(checkpoint, tmp_path, capsys, harm):
    checkpoint.once("task", lambda: 1)
    checkpoint.once("other", lambda: 2)
    path, other = tmp_path / "task.safetensors", tmp_path / "other.safetensors"
    path.write_bytes(path.read_bytes()[:-1] if harm == "cut" else other.read_bytes())
    assert checkpoint.once("task", lambda: 3) == 3
    assert capsys.readouterr().err.startswith(f"note: {path} is damaged: ")
    assert checkpoint.once("task", lambda: 4) == 3 and checkpoint.once("other", lambda: 4) == 2


def test_a_damaged_state_is_dropped(checkpoint, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        walk(checkpoint, 5)
    path = tmp_path / "walk.now.safetensors"
    path.write_bytes(path.read_bytes().replace(b"5", b"7"))
    assert walk(checkpoint, 0) == 0


def test_without_a_folder_nothing_is_stored():
    assert [NOWHERE.once("task", lambda at=at: at) for at in range(3)] == [0, 1, 2]
    with NOWHERE.task("task") as task:
        task.update(lambda: 1)
    assert NOWHERE.task("task").state is None and not NOWHERE.has("task")


def test_finished_task_removes_its_parts(checkpoint, tmp_path):
    def make():
        inner = checkpoint.under("task")
        inner.once("part", lambda: 1)
        with inner.task("walk") as task:
            for at in range(4):
                task.update(lambda at=at: at)
        assert {path.name for path in tmp_path.iterdir()} == {"task.part.safetensors", "task.walk.now.safetensors"}
        return 2

    checkpoint.once("task.other", lambda: 0)  # a part of `task`, by its name
    checkpoint.drop("task.")
    assert checkpoint.once("task", make) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["task.safetensors"]


def walk(checkpoint, end, error=KeyboardInterrupt):
    """Ten steps; the state is written every second one, and the last one after an exception."""
    with checkpoint.task("walk") as task:
        begin = 0 if task.state is None else task.state
        for at in range(begin, 10):
            task.update(lambda at=at: at + 1)
            if at + 1 == end:
                raise error
    return begin


@pytest.mark.parametrize("end", range(1, 10))
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError(), StopSignal(signal.SIGTERM, None)], ids=range(3))
def test_an_exception_stores_the_latest_state(checkpoint, end, error):
    with pytest.raises(type(error)):
        walk(checkpoint, end, error)
    assert checkpoint.task("walk").state == end and walk(checkpoint, 0) == end


def test_the_state_is_written_at_the_set_intervals(tmp_path, monkeypatch):
    values, clock = [], [0.0]
    monkeypatch.setattr(attacks.runtime.checkpoint, "write_values", lambda path, value, key: values.append(value))
    monkeypatch.setattr(attacks.runtime.checkpoint.time, "monotonic", lambda: clock[0])

    def states(**pace):
        values.clear()
        with Checkpoint(tmp_path, "key", **pace).task("walk") as task:
            for at in range(10):
                clock[0] += 1
                task.update(lambda at=at: at)
        return list(values)

    assert states() == []
    assert states(steps=3) == [2, 5, 8]
    assert states(seconds=4) == [3, 7]
    assert states(seconds=4, steps=3) == [2, 5, 8]


@pytest.fixture
def hangup():
    """SIGHUP as in a terminal, whatever the tests themselves run under."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


def test_hangup_stays_ignored_under_nohup(tmp_path, hangup):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stoppable(tmp_path):
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_once_and_handlers_are_restored(tmp_path, number, hangup):
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    with pytest.raises(StopSignal) as stop, stoppable(tmp_path):
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # during the clean-up
    assert stop.value.code == 128 + number and [signal.getsignal(signum) for signum in SIGNALS] == handlers
    assert str(stop.value) == f"stopped by {signal.Signals(number).name}; the run had not begun"


def test_the_resume_command_is_quoted_and_absent_for_a_finished_run(tmp_path):
    folder = tmp_path / "my run, 2"
    folder.mkdir()
    stop = pickle.loads(pickle.dumps(StopSignal(signal.SIGTERM, folder)))  # as from a worker
    (folder / "manifest.json").touch()
    assert shlex.split(str(stop))[-1] == f"resume={folder}"
    (folder / "metrics.json").touch()
    assert str(stop) == "stopped by SIGTERM; the run had finished"


def test_a_signal_is_not_lost_in_a_finaliser_or_behind_another_error(tmp_path, monkeypatch):
    class Loud:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # Python discards errors raised in a finaliser
    with pytest.raises(StopSignal), stoppable(tmp_path):
        Loud()
    with pytest.raises(StopSignal), stoppable(tmp_path):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except StopSignal:
            raise RuntimeError("connection closed by peer") from None


def test_handlers_stay_unchanged_in_another_thread(tmp_path):
    handlers = []

    def work():
        with stoppable(tmp_path):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGTERM)]
