"""A ledger against a model: a table in memory, updated by the documented rules."""

import shutil
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from attacks.runtime.ledger import DIED, Claim, Counts, Ledger


@dataclass
class Unit:
    stop: int
    state: str = "free"
    owner: Ledger | None = None
    tries: int = 0
    deaths: int = 0
    reason: str = ""


class Machine(RuleBasedStateMachine):
    """Several workers in this process. One that dies keeps its units; its row has a start time other
    than that of the process that has its number now."""

    @initialize(count=st.integers(1, 9), size=st.integers(1, 4))
    def make(self, count, size):
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path, self.size = self.folder / "ledger.sqlite", size
        self.names = [f"{i}.png" for i in range(count)]
        self.units = {start: Unit(min(start + size, count)) for start in range(0, count, size)}
        self.workers, self.dead, self.earlier, self.finisher = [], [], {}, None
        self.enter()

    def teardown(self):
        for worker in [*self.workers, *self.dead]:
            worker.close()
        shutil.rmtree(self.folder)

    def pick(self, data, what="claimed"):
        """A worker, and one of the units that it holds."""
        worker = data.draw(st.sampled_from(self.workers))
        held = [start for start, unit in self.units.items() if unit.state == what and unit.owner is worker]
        return worker, data.draw(st.sampled_from(held)) if held else None

    def fail(self, start, tries, final, reason):
        unit = self.units.pop(start)
        if unit.stop > start + 1:
            self.units |= {at: Unit(at + 1, tries=1, reason=reason) for at in range(start, unit.stop)}
        else:
            self.units[start] = Unit(start + 1, "failed" if final else "free", tries=tries, reason=reason)

    def sweep(self, worker):
        for start, unit in list(self.units.items()):
            if unit.owner in self.dead:
                unit.deaths += unit.owner not in self.earlier[worker]
                unit.state, unit.owner = "free", None
                if unit.deaths == 3:
                    self.fail(start, unit.tries + 1, True, DIED)
        if self.finisher in self.dead:
            self.finisher = None

    @precondition(lambda self: len(self.workers) < 4)
    @rule()
    def enter(self):
        worker = Ledger(self.path, self.names, self.size)
        self.workers.append(worker)
        self.earlier[worker] = list(self.dead)

    @rule(data=st.data())
    def claim(self, data):
        worker, _ = self.pick(data)
        self.sweep(worker)
        free = sorted(start for start, unit in self.units.items() if unit.state == "free")
        assert worker.claim() == (Claim(free[0], self.units[free[0]].stop) if free else None)
        if free:
            self.units[free[0]].state, self.units[free[0]].owner = "claimed", worker

    @rule(data=st.data(), how=st.sampled_from(["done", "failed", "release"]))
    def end(self, data, how):
        worker, start = self.pick(data)
        if start is None:
            return
        unit, claim = self.units[start], Claim(start, self.units[start].stop)
        if how == "failed":
            worker.failed(claim, "no\n gradient")
            self.fail(start, unit.tries + 1, unit.tries >= 1, "no gradient")
        else:
            getattr(worker, how)(claim)
            unit.state, unit.owner = ("done" if how == "done" else "free"), None

    @rule(data=st.data())
    def mark(self, data):
        """A result exists already: of an initial unit, or of one picture."""
        count = len(self.names)
        start = data.draw(st.integers(0, count - 1))
        if data.draw(st.booleans()):
            start -= start % self.size
            stop = min(start + self.size, count)
        else:
            stop = start + 1
        data.draw(st.sampled_from(self.workers)).mark_done(start, stop)
        if start not in self.units or self.units[start].stop != stop:
            whole = max(at for at in self.units if at <= start)
            if self.units[whole].stop > stop or whole < start:
                if self.units[whole].state in ("claimed", "done"):
                    return
                self.fail(whole, 1, False, "")
        for at in range(start, stop):
            self.units.pop(at, None)
        self.units[start] = Unit(stop, "done")

    @rule(data=st.data())
    def reopen(self, data):
        """A result is lost. This has an effect only for a unit that is done."""
        start = data.draw(st.sampled_from(sorted(self.units)))
        self.workers[0].reopen(Claim(start, self.units[start].stop))
        if self.units[start].state == "done":
            self.units[start].state = "free"

    @precondition(lambda self: len(self.workers) > 1)
    @rule(data=st.data(), clean=st.booleans())
    def leave(self, data, clean):
        worker, _ = self.pick(data)
        self.workers.remove(worker)
        if clean:
            worker.close()
            for unit in self.units.values():
                if unit.owner is worker:
                    unit.state, unit.owner = "free", None
            self.finisher = None if self.finisher is worker else self.finisher
        else:
            with sqlite3.connect(self.path) as db:
                db.execute("UPDATE owner SET born = 'earlier' WHERE id = ?", (worker._me,))
            db.close()
            worker._pulse.stop()
            self.dead.append(worker)

    @rule(data=st.data())
    def finish(self, data):
        worker, _ = self.pick(data)
        self.sweep(worker)
        ready = all(unit.state in ("done", "failed") for unit in self.units.values())
        expected = ready and self.finisher in (None, worker)
        assert worker.finish() == expected
        self.finisher = worker if expected else self.finisher

    @invariant()
    def the_ledger_equals_the_model(self):
        for worker in self.workers[:1] if hasattr(self, "workers") else ():
            pictures = dict.fromkeys(Counts._fields, 0)
            for start, unit in self.units.items():
                pictures[unit.state] += unit.stop - start
            assert worker.counts()._asdict() == pictures
            units = sorted(self.units.items())
            assert worker.units() == [Claim(start, u.stop) for start, u in units if u.state == "done"]
            failures = [(s, self.names[s], u.tries, u.reason) for s, u in units if u.state == "failed"]
            assert worker.failures() == failures


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestModel = Machine.TestCase


@pytest.fixture
def two(tmp_path):
    """Two workers on six pictures in units of two."""
    names = [f"{i}.png" for i in range(6)]
    with Ledger(tmp_path / "ledger.sqlite", names, 2) as one, Ledger(tmp_path / "ledger.sqlite", names, 2) as other:
        yield one, other


def test_unit_released_and_done_by_another_worker_stays_done(two):
    """As after a worker was wrongly taken for dead: it cannot fail or free a unit that it no longer owns."""
    one, other = two
    claim = one.claim()
    one.release(claim)
    assert other.claim() == claim
    one.failed(claim, "late")
    one.release(claim)
    assert other.counts() == (4, 2, 0, 0)
    one.done(claim)  # its result exists anyway
    other.done(claim)
    assert other.units() == [claim]


@pytest.mark.parametrize("reason", ["x" * 9999, "a\x1b[31mb\nc", "\ud800", ""])
def test_reason_is_one_short_printable_line(two, reason):
    one, _ = two
    one.failed(one.claim(), "first")
    one.failed(one.claim(), reason)
    (failure,) = one.failures()
    assert failure[:3] == (0, "0.png", 2)
    assert len(failure.reason) <= 2000
    assert failure.reason.isprintable()


def test_a_long_reason_keeps_its_beginning_and_its_end(two):
    one, _ = two
    for _ in range(2):
        one.failed(one.claim(), f"NaN begins at lens ({'angle 3, ' * 999}); python scripts/replay_view.py run")
    (failure,) = one.failures()
    assert failure.reason.startswith("NaN begins at lens (")
    assert failure.reason.endswith("; python scripts/replay_view.py run")


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (-1, 0), (5, 7), (2, 2)])
def test_marking_a_range_that_is_not_a_unit_is_refused(two, start, stop):
    with pytest.raises(ValueError, match="are no unit"):
        two[0].mark_done(start, stop)


def test_interrupted_block_releases_its_units(tmp_path):
    names = ["a", "b"]
    with pytest.raises(KeyboardInterrupt), Ledger(tmp_path / "ledger.sqlite", names, 1) as ledger:
        ledger.claim(), ledger.claim()
        raise KeyboardInterrupt
    with Ledger(tmp_path / "ledger.sqlite", names, 1) as ledger:
        assert ledger.counts() == (2, 0, 0, 0)


def test_ledger_without_units_is_finished_at_once(tmp_path):
    with Ledger(tmp_path / "ledger.sqlite", [], 8) as ledger:
        assert ledger.claim() is None
        assert ledger.finish()
