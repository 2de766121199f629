"""The file of a ledger: create, open and check it. It is untrusted, for a stranger may have written it."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

APPLICATION = 0x56504C47  # "VPLG"
VERSION = 1
FREE, CLAIMED, DONE, FAILED = range(4)
#: The exact schema of the file, so that it can hold no trigger, view or generated column.
SCHEMA = (
    "CREATE TABLE run (names TEXT NOT NULL, pictures INTEGER NOT NULL, size INTEGER NOT NULL, finisher INTEGER)",
    "CREATE TABLE owner (id INTEGER PRIMARY KEY, machine TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL, "
    "beat INTEGER NOT NULL)",
    "CREATE TABLE unit (start INTEGER PRIMARY KEY, stop INTEGER NOT NULL, state INTEGER NOT NULL, owner INTEGER, "
    "tries INTEGER NOT NULL, deaths INTEGER NOT NULL, reason TEXT NOT NULL)",
    "CREATE INDEX unit_state ON unit (state, start, stop)",
)
#: Seconds that a worker waits for the others' short transactions.
LOCKED = 30.0
#: A value of more bytes is not read.
LONGEST = 1 << 16
#: The longest message, in characters.
LINE = 2000
#: The last bytes of a journal that names a second journal. Ours never do, and sqlite deletes the named file.
SECOND = bytes.fromhex("d9d505f920a163d7")
SAFE = "the results that are written are safe in files of their own"


def connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    """A connection that runs no code of the file. It uses a rollback journal, because WAL needs shared memory, which
    network file systems lack. `mode` "rw" creates no file."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=LOCKED, isolation_level=None)
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for line in ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = FULL"):
            db.execute(f"PRAGMA {line}")
    except BaseException:
        db.close()
        raise
    return db


def opened(path: Path, names: Sequence[str], size: int) -> sqlite3.Connection:
    """The connection to the ledger of these pictures, in units of `size`; made where there is none.

    Raises:
        ValueError: the file is of other pictures or units, or no ledger. It is left as it was.
        OSError: it cannot be written.
    """
    if size < 1:
        raise ValueError(f"a unit of a ledger must hold at least one picture, got {size}")
    with plain(path, opening=True):
        _check_files(path)
        db = connect(path)
        try:
            with transaction(db):
                if not _one(db, "SELECT count(*) FROM sqlite_master"):
                    _make(db, names, size)
            with transaction(db, "DEFERRED"):  # together with others: of a million pictures this takes a second
                _check(db, path, names, size)
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """A transaction. IMMEDIATE: nobody else writes between its reads and its writes."""
    try:
        db.execute(f"BEGIN {kind}")
        yield
        db.execute("COMMIT")
    finally:  # a signal may raise anywhere
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextmanager
def plain(path: Path, opening: bool = False) -> Iterator[None]:
    """Convert sqlite's errors to one line that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if opening and not name.startswith(tuple(_UNWRITTEN)):
            raise ValueError(_foreign(path, str(error))) from None
        known = (reason for begin, reason in _UNWRITTEN.items() if name.startswith(begin))
        what = next(known, str(error))
        raise OSError(f"the ledger {path} cannot be used: {line(what)}; {SAFE}, and the run can be resumed") from None


#: Error name of sqlite -> message.
_UNWRITTEN = {
    "SQLITE_LOCKED": "this process has locked it",
    "SQLITE_BUSY": f"others have locked it for over {LOCKED:g} s (does this file system have locks?)",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "it may not be written (permissions, a read-only file system), or was moved",
    "SQLITE_PERM": "there is no permission",
    "SQLITE_CANTOPEN": "it cannot be opened (permissions, or its folder is gone)",
    "SQLITE_IOERR": "the disk reports an error, or is full",
}


def _foreign(path: Path, why: str) -> str:
    return f"{path} is not the ledger of this run: {line(why)}; {SAFE}: remove it, and a new one is made"


def line(text: object) -> str:
    """Any text as one printable line. A long one loses its middle: the error is at its beginning, and the command to
    replay it at its end."""
    flat = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    half = (LINE - 5) // 2
    return flat if len(flat) <= LINE else f"{flat[:half]} ... {flat[-half:]}"


def digest(names: Sequence[str]) -> str:
    """The digest of a list of picture names."""
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def _make(db: sqlite3.Connection, names: Sequence[str], size: int) -> None:
    for line in SCHEMA:
        db.execute(line)
    count = len(names)
    db.execute("INSERT INTO run VALUES (?, ?, ?, NULL)", (digest(names), count, size))
    units = ((start, min(start + size, count), FREE) for start in range(0, count, size))
    db.executemany("INSERT INTO unit VALUES (?, ?, ?, NULL, 0, 0, '')", units)
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def _check_files(path: Path) -> None:
    """Check the file and those beside it before sqlite opens them. Raises ValueError."""
    journal, log = (path.with_name(path.name + end) for end in ("-journal", "-wal"))
    if any(file.is_symlink() or (file.exists() and not file.is_file()) for file in (path, journal)):
        raise ValueError(_foreign(path, "it is a link or no file"))
    if path.exists() and 0 < path.stat().st_size < 512:  # sqlite takes it for an empty one
        raise ValueError(_foreign(path, "it is cut off, or something else"))
    if journal.exists() and _read(journal, -len(SECOND)) == SECOND:
        raise ValueError(_foreign(path, "its journal names a second one"))
    if log.is_symlink() or log.exists() or (path.exists() and 2 in _read(path, 20)[18:]):
        raise ValueError(_foreign(path, "it has a write-ahead log"))


def _check(db: sqlite3.Connection, path: Path, names: Sequence[str], size: int) -> None:
    """Raise ValueError unless the file is whole, ours, and of this run: every picture in one unit."""
    header = _one(db, "PRAGMA application_id"), _one(db, "PRAGMA user_version")
    schema = tuple(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid LIMIT 9"))
    if header != (APPLICATION, VERSION) or schema != SCHEMA:
        raise ValueError(_foreign(path, "it is another program's, or another version's"))
    if (damage := _one(db, "PRAGMA quick_check(1)")) != "ok":
        raise ValueError(_foreign(path, f"it is damaged ({str(damage)[:200]})"))
    runs = db.execute("SELECT names, pictures, size FROM run LIMIT 2").fetchall()
    if len(runs) != 1:
        raise ValueError(_foreign(path, "it is damaged (it holds no run, or several)"))
    count, (known, pictures, unit) = len(names), runs[0]
    if (pictures, unit) != (count, size):
        raise ValueError(_foreign(path, f"it has {pictures} pictures in units of {unit}, not {count} in {size}"))
    if known != digest(names):
        raise ValueError(_foreign(path, "it is of other pictures, by their names or order"))
    reached = 0
    query = "SELECT start, stop, state, tries, deaths FROM unit ORDER BY start"
    for start, stop, *numbers in db.execute(query):
        whole = start % size == 0 and stop == min(start + size, count)
        natural = all(isinstance(n, int) and 0 <= n < LONGEST for n in numbers) and numbers[0] <= FAILED
        if start != reached or not (whole or stop == start + 1 <= count) or not natural:
            raise ValueError(_foreign(path, f"it is damaged (at picture {reached})"))
        reached = stop
    if reached != count:
        raise ValueError(_foreign(path, f"it is damaged (it ends at picture {reached})"))


def _one(db: sqlite3.Connection, query: str) -> object:
    row = db.execute(query).fetchone()
    return None if row is None else row[0]


def _read(path: Path, count: int) -> bytes:
    """The first bytes of a file, or the last where `count` is negative; none where another worker has removed it."""
    try:
        with path.open("rb") as file:
            if count < 0:
                file.seek(max(0, file.seek(0, 2) + count))
            return file.read(abs(count))
    except FileNotFoundError:
        return b""
