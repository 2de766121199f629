"""Workers that die: their units are taken over once, and nothing is lost."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from attacks.runtime import processes as living
from attacks.runtime.ledger import DIED, Claim, Ledger, workers

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"{i}.png" for i in range(200)]
#: The ledger alone: without the torch of the package, a process starts in no time.
START = f"""
import os, random, sys, time, types
from pathlib import Path
sys.modules["attacks"] = package = types.ModuleType("attacks")
package.__path__ = [{str(ROOT / "attacks")!r}]
from attacks.runtime.ledger import Ledger
"""
WORKER = (
    START
    + """
with Ledger(Path(sys.argv[1]), [f"{i}.png" for i in range(200)], 1) as ledger:
    while not ledger.counts()[:2] == (0, 0):
        claim = ledger.claim()
        if claim is None:
            time.sleep(0.01)
            continue
        time.sleep(random.uniform(0, 0.01))
        print(claim.start, flush=True)  # the result is written
        ledger.done(claim)
    if ledger.finish():
        print("finish", flush=True)
        time.sleep(0.3)
"""
)


@pytest.fixture
def path():
    """In memory if possible: on a disk every sync takes time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder) / "ledger.sqlite"


def change(path, worker, **values):
    """The row of a worker."""
    db = sqlite3.connect(path)
    columns = ", ".join(f"{name} = ?" for name in values)
    db.execute(f"UPDATE owner SET {columns} WHERE id = ?", (*values.values(), worker))
    db.commit()
    db.close()


def test_four_workers_of_which_two_are_killed_do_every_picture(path):
    Ledger(path, NAMES, 1).close()
    command = [sys.executable, "-c", WORKER, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(4)]
    with Ledger(path, NAMES, 1) as ledger:
        for process in processes[:2]:
            goal = random.uniform(10, 90)  # pictures done
            while ledger.counts().done < goal:
                assert process.poll() is None
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)  # and no process waits for it: it stays a zombie
        outputs = [process.communicate(timeout=60)[0].split() for process in processes]
        assert [process.returncode for process in processes] == [-9, -9, 0, 0]
        assert ledger.units() == [Claim(i, i + 1) for i in range(200)]
    lines = Counter(line for lines in outputs for line in lines)
    assert lines.pop("finish") == 1
    assert sorted(map(int, lines)) == list(range(200))
    alive = Counter(line for lines in outputs[2:] for line in lines if line != "finish")
    assert max(alive.values()) == 1  # nothing twice by the surviving workers
    again = {line for line, count in lines.items() if count > 1}
    assert again <= {killed[-1] for killed in outputs[:2] if killed}  # only the current picture of the killed ones


def test_a_reused_process_id_is_detected(path):
    first, second = Ledger(path, NAMES[:2], 1), Ledger(path, NAMES[:2], 1)
    claim = first.claim()
    assert second.claim() == Claim(1, 2)
    assert second.claim() is None  # both live, in this very process
    change(path, 1, born="1")  # the process with the id of the first started at another time
    assert second.claim() == claim
    first.close()
    second.close()


def test_a_worker_on_another_machine_is_dead_when_its_heartbeat_stops(path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(workers.time, "monotonic", lambda: clock[0])
    there = Ledger(path, NAMES[:2], 2)
    claim = there.claim()
    change(path, 1, machine="elsewhere")
    with Ledger(path, NAMES[:2], 2, patience=60) as ledger:
        for _ in range(3):  # it sends heartbeats
            clock[0] += 59
            change(path, 1, beat=int(clock[0]))
            assert ledger.claim() is None
    with Ledger(path, NAMES[:2], 2, patience=60) as ledger:
        for seconds in (0, 30, 29):
            clock[0] += seconds
            assert ledger.claim() is None
        clock[0] += 2
        assert not ledger.finish()  # the unit is free again, not done
        assert ledger.claim() == claim
        there.done(claim)  # it was only slow
        assert ledger.finish()
    there.close()


def test_a_worker_sends_heartbeats_only_while_it_holds_a_unit(path):
    with Ledger(path, NAMES[:2], 2, patience=0.06) as ledger:
        db = sqlite3.connect(path)

        def beats(seconds):
            start = db.execute("SELECT beat FROM owner").fetchone()[0]
            time.sleep(seconds)
            return db.execute("SELECT beat FROM owner").fetchone()[0] - start

        assert beats(0.1) == 0
        claim = ledger.claim()
        assert beats(0.3) > 0
        ledger.done(claim)
        beats(0.1)  # one may be in progress
        assert beats(0.1) == 0
        assert ledger.finish()
        assert beats(0.3) > 0
        db.close()


def killed(path, count=1):
    """A worker that claims a unit and dies."""
    names = [f"{i}.png" for i in range(count)]
    script = f"{START}\nledger = Ledger(Path(sys.argv[1]), {names}, {count}); ledger.claim(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, check=False).returncode == 9


def looked(ledger):
    """The unit that the ledger assigns; it is released again."""
    claim = ledger.claim()
    if claim is not None:
        ledger.release(claim)
    return claim


def test_a_unit_that_kills_three_workers_is_split_then_failed(path):
    with Ledger(path, NAMES[:2], 2) as ledger:
        for expected in (Claim(0, 2), Claim(0, 2), Claim(0, 1)):
            killed(path, 2)
            assert looked(ledger) == expected
        ledger.mark_done(1, 2)
        for expected in (Claim(0, 1), Claim(0, 1), None):
            killed(path, 2)
            assert looked(ledger) == expected
        assert ledger.failures() == [(0, "0.png", 2, DIED)]


def test_deaths_before_a_worker_starts_are_not_counted(path):
    """A run interrupted three times is no evidence that its picture kills workers."""
    for _ in range(5):
        killed(path)
    with Ledger(path, NAMES[:1], 1) as ledger:
        assert ledger.claim() == Claim(0, 1)
        assert ledger.failures() == []


def test_the_finish_is_taken_over_from_a_dead_worker(path):
    with Ledger(path, [], 1) as ledger:
        other = Ledger(path, [], 1)
        assert other.finish()
        assert not ledger.finish()
        change(path, 2, born="1")
        assert ledger.finish()
        assert ledger.finish()
        other.close()


def test_a_process_is_identified_by_its_id_and_start_time():
    own = os.getpid()
    assert living.lives(own)
    assert living.lives(own, living.born(own))
    assert not living.lives(own, "1")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = living.born(process.pid)
    assert living.lives(process.pid, since)
    process.kill()
    deadline = time.monotonic() + 10
    while living.lives(process.pid, since):  # a zombie until its parent waits for it
        assert time.monotonic() < deadline
    process.communicate()
    assert not living.lives(process.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**80, "1", None, 1.5])
def test_an_invalid_process_id_is_not_alive(pid):
    assert not living.lives(pid)


def test_without_proc_the_process_id_alone_decides(monkeypatch):
    monkeypatch.setattr(living, "_stat", lambda pid: [])
    assert living.born(os.getpid()) == ""
    assert living.lives(os.getpid(), "1")


def test_another_users_process_is_alive(monkeypatch):
    def refuse(pid, signal):
        raise PermissionError

    monkeypatch.setattr(living.os, "kill", refuse)
    assert living.lives(os.getpid())
