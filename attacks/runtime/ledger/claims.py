"""The ledger of a run: a file in which several processes, also on several machines, share the pictures.

Every worker claims a unit of pictures and marks it as done. If a worker dies, the others take over its unit.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from attacks.runtime.ledger.file import CLAIMED, DONE, FAILED, FREE, line, opened, plain, transaction
from attacks.runtime.ledger.workers import Pulse, Watch, beat, enter

#: A single picture is given up after so many failures; the failure of its unit counts as one.
TRIES = 2
#: A unit is given up after the deaths of so many of its workers.
DEATHS = 3
#: Beats within `patience`.
BEATS = 6
DIED = f"its process ended {DEATHS} times: memory, or a crash of a library"


@dataclass(frozen=True)
class Claim:
    """Pictures [start, stop) of the run, by number: the unit of work."""

    start: int
    stop: int


class Counts(NamedTuple):
    """Pictures in each state."""

    free: int
    claimed: int
    done: int
    failed: int


class Failure(NamedTuple):
    """A picture that is given up."""

    picture: int
    name: str
    tries: int
    reason: str


class Ledger:
    """The ledger of a run in the file `path`, opened by one worker; made where there is none.

    To be used by the thread that opened it, and not by a process forked from it.

    Args:
        names: of all pictures of the run, in order. Every worker must bring the same.
        size: pictures in a unit.
        patience: seconds without a beat after which a worker on another machine is taken for dead.

    Raises:
        ValueError: the file is the ledger of other pictures or units, or none.
        OSError: here and everywhere: it cannot be read or written, or was locked by others for half a minute.
    """

    def __init__(self, path: Path, names: Sequence[str], size: int, *, patience: float = 60.0) -> None:
        self._path, self._names, self._size = path, names, size
        self._db = opened(path, names, size)
        try:
            with plain(path), transaction(self._db):
                self._me = enter(self._db)
                self._watch = Watch(self._db, self._me, patience)
        except BaseException:
            self._db.close()
            raise
        self._pulse = Pulse(path, self._me, patience / BEATS)
        self._held: set[Claim | None] = set()  # None: the finish
        self._open = True

    def claim(self) -> Claim | None:
        """Claim the next unit that is free or whose worker is gone; None if there is none now."""
        with plain(self._path), transaction(self._db):
            self._take_over(self._watch.gone(self._db))
            query = "SELECT start, stop FROM unit WHERE state = ? ORDER BY start LIMIT 1"
            row = self._db.execute(query, (FREE,)).fetchone()
            if row is None:
                return None
            self._db.execute("UPDATE unit SET state = ?, owner = ? WHERE start = ?", (CLAIMED, self._me, row[0]))
            beat(self._db, self._me)
        claim = Claim(*row)
        self._hold(claim, True)
        return claim

    def done(self, claim: Claim) -> None:
        """Mark a unit as done: its result is in a file, even if another worker has taken it over since."""
        with plain(self._path), transaction(self._db):
            self._finish_unit(claim)
        self._hold(claim, False)

    def failed(self, claim: Claim, reason: str) -> None:
        """Mark a unit as failed: its pictures are tried again one by one; a second failure is final."""
        with plain(self._path), transaction(self._db):
            query = "SELECT tries FROM unit WHERE start = ? AND stop = ? AND state = ? AND owner = ?"
            row = self._db.execute(query, (claim.start, claim.stop, CLAIMED, self._me)).fetchone()
            if row is not None:
                self._fail(claim, row[0] + 1, row[0] + 1 >= TRIES, reason)
        self._hold(claim, False)

    def release(self, claim: Claim) -> None:
        """Free a claimed unit."""
        query = "UPDATE unit SET state = ?, owner = NULL WHERE start = ? AND stop = ? AND state = ? AND owner = ?"
        with plain(self._path), transaction(self._db):
            self._db.execute(query, (FREE, claim.start, claim.stop, CLAIMED, self._me))
        self._hold(claim, False)

    def mark_done(self, start: int, stop: int) -> None:
        """Mark a unit as done whose result file exists, though the ledger may not know it: its worker died before
        `done`, or the ledger is new. A single picture splits its unit, as a failure does, unless the whole unit is
        claimed or done."""
        count, one = len(self._names), stop == start + 1
        whole = start % self._size == 0 and stop == min(start + self._size, count)
        if not 0 <= start < stop <= count or not (whole or one):
            raise ValueError(f"pictures {start} to {stop} are no unit of {self._path}")
        with plain(self._path), transaction(self._db):
            if self._finish_unit(Claim(start, stop)):
                return
            if one:
                query = "SELECT start, stop, state FROM unit WHERE start <= ? ORDER BY start DESC LIMIT 1"
                first, last, state = self._db.execute(query, (start,)).fetchone()
                if state in (CLAIMED, DONE):
                    return
                self._fail(Claim(first, last), 1, False, "")
            else:
                self._db.execute("DELETE FROM unit WHERE start > ? AND start < ?", (start, stop))
                self._db.execute("UPDATE unit SET stop = ? WHERE start = ?", (stop, start))
            self._finish_unit(Claim(start, stop))

    def reopen(self, claim: Claim) -> None:
        """Free a unit that was done, because its result is lost."""
        query = "UPDATE unit SET state = ? WHERE start = ? AND stop = ? AND state = ?"
        with plain(self._path), transaction(self._db):
            self._db.execute(query, (FREE, claim.start, claim.stop, DONE))

    def counts(self) -> Counts:
        """The number of pictures in each state."""
        rows = dict(self._read("SELECT state, sum(stop - start) FROM unit GROUP BY state"))
        return Counts(*(rows.get(state, 0) for state in (FREE, CLAIMED, DONE, FAILED)))

    def units(self) -> list[Claim]:
        """All units that are done, in order."""
        rows = self._read("SELECT start, stop FROM unit WHERE state = ? ORDER BY start", DONE)
        return [Claim(start, stop) for start, stop in rows]

    def failures(self) -> list[Failure]:
        """The pictures that are given up, in order."""
        rows = self._read("SELECT start, tries, reason FROM unit WHERE state = ? ORDER BY start", FAILED)
        return [Failure(start, self._names[start], tries, line(reason)) for start, tries, reason in rows]

    def finish(self) -> bool:
        """Claim the finish, once no unit is free or claimed. True for one living worker; after it has closed its
        ledger or died, for the next caller, who must check first whether the run is finished."""
        with plain(self._path), transaction(self._db):
            gone = self._watch.gone(self._db)
            self._take_over(gone)
            if self._db.execute("SELECT 1 FROM unit WHERE state IN (?, ?) LIMIT 1", (FREE, CLAIMED)).fetchone():
                return False
            (finisher,) = self._db.execute("SELECT finisher FROM run").fetchone()
            if finisher not in (None, self._me) and finisher not in gone:
                return False
            self._db.execute("UPDATE run SET finisher = ?", (self._me,))
            beat(self._db, self._me)
        self._hold(None, True)
        return True

    def close(self) -> None:
        """Free everything that is still held. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._pulse.stop()
        query = "UPDATE unit SET state = ?, owner = NULL WHERE state = ? AND owner = ?"
        try:
            # If this fails, the other workers notice that this process is gone.
            with suppress(OSError), plain(self._path), transaction(self._db):
                self._db.execute(query, (FREE, CLAIMED, self._me))
                self._db.execute("UPDATE run SET finisher = NULL WHERE finisher = ?", (self._me,))
        finally:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        with plain(self._path):
            return self._db.execute(query, values).fetchall()

    def _hold(self, claim: Claim | None, held: bool) -> None:
        self._held = self._held | {claim} if held else self._held - {claim}
        self._pulse.busy = bool(self._held)

    def _finish_unit(self, claim: Claim) -> bool:
        query = "UPDATE unit SET state = ?, owner = NULL, reason = '' WHERE start = ? AND stop = ?"
        return self._db.execute(query, (DONE, claim.start, claim.stop)).rowcount > 0

    def _fail(self, claim: Claim, tries: int, final: bool, reason: str) -> None:
        alone = claim.stop == claim.start + 1
        self._db.execute("DELETE FROM unit WHERE start = ?", (claim.start,))
        state = FAILED if alone and final else FREE
        rows = ((at, at + 1, state, tries if alone else 1, line(reason)) for at in range(claim.start, claim.stop))
        self._db.executemany("INSERT INTO unit VALUES (?, ?, ?, NULL, ?, 0, ?)", rows)

    def _take_over(self, gone: set[int]) -> None:
        """Free the units of dead workers, or give up a unit after too many deaths."""
        held = "SELECT start, stop, tries, deaths FROM unit WHERE state = ? AND owner IS ?"
        free = "UPDATE unit SET state = ?, owner = NULL, deaths = ? WHERE start = ?"
        for worker in gone:
            for start, stop, tries, deaths in self._db.execute(held, (CLAIMED, worker)).fetchall():
                deaths += worker not in self._watch.earlier
                if deaths >= DEATHS:
                    self._fail(Claim(start, stop), tries + 1, True, DIED)
                else:
                    self._db.execute(free, (FREE, deaths, start))
