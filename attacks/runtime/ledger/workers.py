"""The workers of a ledger: which of them are gone, and the heartbeat of this one.

On the same machine a process is looked up by its id. From another machine only its heartbeat is visible, a number
that the worker raises every few seconds while it holds a unit; clocks of machines are never compared.
"""

import os
import sqlite3
import threading
import time
from contextlib import suppress
from pathlib import Path

from attacks.runtime.ledger.file import CLAIMED, connect
from attacks.runtime.processes import born, lives, machine

HOLDERS = """SELECT held.id, machine, pid, born, beat
    FROM (SELECT owner AS id FROM unit WHERE state = ? UNION SELECT finisher FROM run WHERE finisher NOT NULL) AS held
    LEFT JOIN owner ON owner.id = held.id"""


def enter(db: sqlite3.Connection) -> int:
    """Register this worker; returns its id."""
    pid = os.getpid()
    cursor = db.execute("INSERT INTO owner VALUES (NULL, ?, ?, ?, 0)", (machine(), pid, born(pid)))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def beat(db: sqlite3.Connection, worker: int) -> None:
    """Raise the heartbeat of a worker."""
    db.execute("UPDATE owner SET beat = beat + 1 WHERE id = ?", (worker,))


class Watch:
    """Which of the workers that hold something are gone, as observed by the worker `me`."""

    def __init__(self, db: sqlite3.Connection, me: int, patience: float) -> None:
        self._me, self._patience = me, patience
        self._seen: dict[int, tuple[object, float]] = {}  # workers on other machines: their beat, and since when
        #: Workers that were gone at the start, or have not beaten since. They belong to an interrupted run, so their
        #: deaths do not count against the units they held.
        self.earlier: set[int] = set()
        self.earlier = self.gone(db) | set(self._seen)

    def gone(self, db: sqlite3.Connection) -> set[int]:
        """The workers that are gone. Call this often: the age of a beat counts from its first reading here."""
        now, gone = time.monotonic(), set()
        for worker, where, pid, since, count in db.execute(HOLDERS, (CLAIMED,)).fetchall():
            seen = self._seen.get(worker)
            if worker == self._me:
                continue
            if where == machine():
                if not lives(pid, since):
                    gone.add(worker)
            elif seen is None or seen[0] != count:
                self._seen[worker] = count, now
                if seen is not None:
                    self.earlier.discard(worker)
            elif now - seen[1] >= self._patience:
                gone.add(worker)
        return gone


class Pulse:
    """A thread that beats for a worker of the ledger `path` while it is `busy`."""

    def __init__(self, path: Path, worker: int, seconds: float) -> None:
        self.busy = False
        self._path, self._worker, self._seconds = path, worker, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            if self.busy:
                with suppress(sqlite3.Error, ValueError):  # patience is several beats
                    db = connect(self._path, "rw")
                    try:
                        beat(db, self._worker)
                    finally:
                        db.close()
