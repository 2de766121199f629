"""The file of a ledger may be foreign or damaged: it is refused in one line, and left unchanged."""

import os
import sqlite3

import pytest

from attacks.runtime.ledger import Ledger
from attacks.runtime.ledger.file import SCHEMA, SECOND

NAMES = [f"{i}.png" for i in range(20)]


@pytest.fixture
def path(tmp_path):
    """The ledger of 20 pictures in units of 4, one of them done."""
    with Ledger(tmp_path / "ledger.sqlite", NAMES, 4) as ledger:
        ledger.done(ledger.claim())
    return tmp_path / "ledger.sqlite"


def executed(*lines):
    """A call that executes statements on the database."""

    def run(path):
        db = sqlite3.connect(path)
        for line in lines:
            db.execute(line)
        db.commit()
        db.close()

    return run


def shortened(count):
    return lambda path: os.truncate(path, count)


def scribbled(path):
    raw = bytearray(path.read_bytes())
    raw[4200:12000] = b"\xff" * 7800
    path.write_bytes(raw)


def linked(path):
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def journalled(path):
    """A journal that names a second file, which sqlite would delete."""
    name = str(path.with_name("precious")).encode()
    path.with_name("precious").write_bytes(b"keep me")
    ending = name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + SECOND
    pages = (path.stat().st_size // 4096).to_bytes(4, "big")
    header = SECOND + bytes(8) + pages + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    path.with_name(path.name + "-journal").write_bytes(header.ljust(512, b"\0") + b"\0\0\0\1" + ending)


MALFORMED = {
    "text": lambda path: path.write_text("pictures: 20\n" * 100),
    "short text": lambda path: path.write_text("x"),
    "half a header": shortened(50),
    "half a page": shortened(3000),
    "some pages": shortened(8192),
    "scribbled": scribbled,
    "another program": executed("PRAGMA application_id = 7"),
    "another version": executed("PRAGMA user_version = 2"),
    "another table": executed("CREATE TABLE more (a)"),
    "a trigger": executed("CREATE TRIGGER t AFTER UPDATE ON unit BEGIN DELETE FROM unit; END"),
    "a view for a table": executed("DROP TABLE run", "CREATE VIEW run AS SELECT 1"),
    "a table less": executed("DROP TABLE owner"),
    "a run more": executed("INSERT INTO run VALUES ('', 1, 1, NULL)"),
    "no run": executed("DELETE FROM run"),
    "a gap": executed("DELETE FROM unit WHERE start = 4"),
    "the end gone": executed("DELETE FROM unit WHERE start = 16"),
    "a unit too long": executed("UPDATE unit SET stop = 9 WHERE start = 4"),
    "pictures after the end": executed("INSERT INTO unit VALUES (20, 21, 0, NULL, 0, 0, '')"),
    "a text for a number": executed("UPDATE unit SET stop = 'eight' WHERE start = 4"),
    "a number for a state": executed("UPDATE unit SET state = 9 WHERE start = 4"),
    "tries without end": executed("UPDATE unit SET tries = 9223372036854775807 WHERE start = 4"),
    "write-ahead log": executed("PRAGMA journal_mode = WAL"),
    "a log beside it": lambda path: path.with_name(path.name + "-wal").write_bytes(b""),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link": linked,
    "a journal with a second": journalled,
    "not sqlite's version": lambda path: path.write_bytes(b"SQLite format 3\0" + b"\x10\0\xff\xff" + bytes(4076)),
}


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize("harm", MALFORMED.values(), ids=MALFORMED)
def test_file_that_is_not_a_ledger_of_this_run_is_refused_and_left_unchanged(path, harm):
    harm(path)
    original = content(path.parent)
    with pytest.raises(ValueError, match="is not the ledger of this run") as error:
        Ledger(path, NAMES, 4)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert content(path.parent) == original


@pytest.mark.parametrize("names", [NAMES[:-1], [*NAMES, "x"], NAMES[::-1], [*NAMES[:-1], "x"]], ids=len)
def test_other_pictures_are_refused(path, names):
    with pytest.raises(ValueError, match=r"not the ledger of this run.*pictures"):
        Ledger(path, names, 4)


def test_other_units_are_refused(path):
    with pytest.raises(ValueError, match="units of 4, not 20 in 5"):
        Ledger(path, NAMES, 5)
    with pytest.raises(ValueError, match="at least one picture"):
        Ledger(path, NAMES, 0)


def test_foreign_reason_is_made_printable_and_oversized_value_is_refused(path):
    executed("UPDATE unit SET state = 3, stop = 5, reason = x'1b5bff' WHERE start = 4")(path)
    executed(*(f"INSERT INTO unit VALUES ({i}, {i + 1}, 0, NULL, 1, 0, '')" for i in (5, 6, 7)))(path)
    with Ledger(path, NAMES, 4) as ledger:
        assert ledger.failures()[0].reason.isprintable()
        executed("UPDATE unit SET reason = printf('%.*c', 99999, 'x') WHERE start = 4")(path)
        with pytest.raises(OSError, match=r"the ledger .* cannot be used: string or blob too big"):
            ledger.failures()


def test_units_of_nonexistent_workers_are_taken_over(path):
    """Whatever a foreign file has as workers, none is waited for longer than the patience."""
    executed("UPDATE unit SET state = 1, owner = 99 WHERE start = 4")(path)
    executed("UPDATE unit SET state = 1, owner = NULL WHERE start = 8")(path)
    executed("INSERT INTO owner VALUES (-5, 'x', -1, 'y', 9223372036854775807)")(path)
    executed("UPDATE unit SET state = 1, owner = -5 WHERE start = 12")(path)
    with Ledger(path, NAMES, 4, patience=0) as ledger:
        assert [ledger.claim().start for _ in range(4)] == [4, 8, 12, 16]


def test_empty_file_is_a_new_ledger(path):
    path.write_bytes(b"")  # the process was killed during its creation
    with Ledger(path, NAMES, 4) as ledger:
        assert ledger.counts() == (20, 0, 0, 0)


def test_schema_equals_the_sql_stored_by_sqlite(path):
    db = sqlite3.connect(path)
    assert tuple(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master ORDER BY rowid")) == SCHEMA
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    db.close()


class Broken:
    """A connection with a disk error."""

    def __init__(self, db, name):
        self.db, self.name = db, name
        self.in_transaction = False

    def execute(self, query, *values):
        error = sqlite3.OperationalError("it does not\nwork")
        error.sqlite_errorname = self.name
        raise error

    def close(self):
        self.db.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SQLITE_BUSY", "others have locked it for over 30 s"),
        ("SQLITE_FULL", "the disk is full"),
        ("SQLITE_READONLY_DBMOVED", "may not be written"),
        ("SQLITE_CANTOPEN", "cannot be opened"),
        ("SQLITE_IOERR_FSYNC", "the disk reports an error"),
        ("SQLITE_CORRUPT", "it does not work"),
        (None, "it does not work"),
    ],
)
def test_disk_error_is_one_line_that_names_what_is_safe(path, name, reason):
    ledger = Ledger(path, NAMES, 4)
    ledger._db = Broken(ledger._db, name)
    with pytest.raises(OSError, match=f"the ledger {path} cannot be used: .*{reason}.*are safe") as error:
        ledger.claim()
    assert "\n" not in str(error.value)
    ledger.close()


def test_missing_folder_is_reported_as_a_disk_error(tmp_path):
    with pytest.raises(OSError, match="cannot be opened"):
        Ledger(tmp_path / "none" / "ledger.sqlite", NAMES, 4)


def test_removed_ledger_is_not_recreated_by_its_last_worker(path):
    ledger = Ledger(path, NAMES, 4, patience=0.06)
    ledger.claim()
    path.unlink()
    with pytest.raises(OSError, match="the ledger"):
        while True:  # sqlite notices at its next access
            ledger.claim()
    ledger._pulse._stop.wait(0.1)
    ledger.close()
    assert not path.exists()


def test_sqlite_deletes_the_file_named_in_a_journal(path):
    """The reason for refusing such a journal."""
    journalled(path)
    db = sqlite3.connect(path)
    db.execute("SELECT count(*) FROM unit").fetchone()
    db.close()
    assert not path.with_name("precious").exists()
