"""Tasks that are kept, and the place of the one in hand."""

import os
import pickle
import shlex
import signal
import threading

import pytest
import torch

import attacks.runtime.checkpoint
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.signals import SIGNALS, Stopped, stoppable


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path, "key", seconds=None, steps=2)


def test_a_task_is_done_once(checkpoint, tmp_path):
    made = []
    found = [checkpoint.once("task", lambda: (made.append(1), torch.ones(2))[1]) for _ in range(3)]
    assert made == [1] and all(torch.equal(each, torch.ones(2)) for each in found)
    assert [path.name for path in tmp_path.iterdir()] == ["task.safetensors"]


def test_what_is_kept_of_a_run_is_of_no_use_to_another(checkpoint, tmp_path):
    checkpoint.once("task", lambda: 1)
    with pytest.raises(ValueError, match="another run"):
        Checkpoint(tmp_path, "other").once("task", lambda: 2)


def test_nowhere_keeps_nothing():
    assert [NOWHERE.once("task", lambda at=at: at) for at in range(3)] == [0, 1, 2]
    with NOWHERE.going("task") as going:
        going.at(lambda: 1)
    assert NOWHERE.going("task").start is None and not NOWHERE.has("task")


def test_a_task_takes_its_parts_along(checkpoint, tmp_path):
    def make():
        inner = checkpoint.under("task")
        inner.once("part", lambda: 1)
        with inner.going("walk") as going:
            for at in range(4):
                going.at(lambda at=at: at)
        assert {path.name for path in tmp_path.iterdir()} == {"task.part.safetensors", "task.walk.now.safetensors"}
        return 2

    checkpoint.once("task.other", lambda: 0)  # no part of `task`, but for its name: it is one of its parts
    checkpoint.drop("task.")
    assert checkpoint.once("task", make) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["task.safetensors"]


def walk(checkpoint, until, error=KeyboardInterrupt):
    """Ten steps, the places of which are written every second one, and the last when an exception comes."""
    with checkpoint.going("walk") as going:
        begin = 0 if going.start is None else going.start
        for at in range(begin, 10):
            going.at(lambda at=at: at + 1)
            if at + 1 == until:
                raise error
    return begin


@pytest.mark.parametrize("until", range(1, 10))
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, Stopped(signal.SIGTERM, None)], ids=range(3))
def test_an_exception_finds_the_last_place_written(checkpoint, until, error):
    with pytest.raises(type(error) if isinstance(error, BaseException) else error):
        walk(checkpoint, until, error)
    assert checkpoint.going("walk").start == until
    assert walk(checkpoint, 0) == until


def test_a_place_is_written_as_often_as_asked(tmp_path, monkeypatch):
    written, now = [], [0.0]
    monkeypatch.setattr(attacks.runtime.checkpoint, "write", lambda path, value, key: written.append(value))
    monkeypatch.setattr(attacks.runtime.checkpoint.time, "monotonic", lambda: now[0])

    def walked(**pace):
        written.clear()
        with Checkpoint(tmp_path, "key", **pace).going("walk") as going:
            for at in range(10):
                now[0] += 1
                going.at(lambda at=at: at)
        return list(written)

    assert walked() == []
    assert walked(steps=3) == [2, 5, 8]
    assert walked(seconds=4) == [3, 7]
    assert walked(seconds=4, steps=3) == [2, 5, 8]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_once_and_leaves_things_as_they_were(tmp_path, number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(Stopped) as caught, stoppable(tmp_path):
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # while things are put away
    assert caught.value.code == 128 + number and [signal.getsignal(each) for each in SIGNALS] == before
    assert str(caught.value) == f"stopped by {signal.Signals(number).name}; nothing was begun"


def test_how_to_go_on_is_said_as_a_shell_wants_it_and_not_of_a_run_at_its_end(tmp_path):
    folder = tmp_path / "my run, 2"
    folder.mkdir()
    stop = Stopped(signal.SIGTERM, folder)
    (folder / "manifest.json").touch()
    assert shlex.split(str(stop))[-1] == f"resume={folder}"
    (folder / "metrics.json").touch()
    assert str(stop) == "stopped by SIGTERM; the run had come to its end"


def test_a_signal_is_not_lost_in_a_finaliser_or_behind_another_error(tmp_path):
    class Loud:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def broken(_):
        """As the collector does: what is raised in a finaliser is told, and dropped."""

    import sys

    hook, sys.unraisablehook = sys.unraisablehook, broken
    try:
        with pytest.raises(Stopped), stoppable(tmp_path):
            Loud()
        with pytest.raises(Stopped), stoppable(tmp_path):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Stopped:
                raise RuntimeError("connection closed by peer") from None
    finally:
        sys.unraisablehook = hook


def test_what_stopped_a_worker_can_be_told_to_its_parent(tmp_path):
    again = pickle.loads(pickle.dumps(Stopped(signal.SIGTERM, tmp_path)))
    assert again.code == 143 and str(again) == "stopped by SIGTERM; nothing was begun"


def test_in_another_thread_signals_stay_as_they_are(tmp_path):
    seen = []

    def work():
        with stoppable(tmp_path):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
