"""Archives and stores that are copied: within limits of files and bytes, whatever they say of themselves."""

import os
import stat
import zipfile
from pathlib import Path

import fsspec
import pytest

from attacks.runtime import remote
from attacks.runtime.remote import local


def zip_file(path, entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def link(aim):
    info = zipfile.ZipInfo("run/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return {info: aim}


#: What an archive holds; False where it is refused. The limits are 50 files, 2**20 bytes, 100 times the archive.
ARCHIVES = {
    "a run": ({"run/a": os.urandom(9000), "run/b/c": b"text"}, True),
    "links, which become files": ({**link("/etc/passwd"), "run/a": b""}, True),
    "an empty file": ({"run/a": b""}, True),
    "much of nothing": ({"run/a": bytes(900_000)}, False),
    "too much": ({f"run/{i}": os.urandom(2**18) for i in range(5)}, False),
    "too many": ({f"run/{i}": b"" for i in range(51)}, False),
    "a name that leads out": ({"run/../../a": b"x"}, False),
    "a file that is a folder": ({"run/a": b"x", "run/a/b": b"x"}, False),
    "a long name": ({f"run/{'a' * 300}": b"x"}, False),
    "a deep name": ({"run/" + "a/" * 3000 + "a": b"x"}, False),
}


@pytest.fixture
def limited(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "MOST_FILES", 50)
    monkeypatch.setattr(remote, "MOST_BYTES", 2**20)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_are_copied_whole_or_refused_within_the_limits(limited, name):
    entries, is_accepted = ARCHIVES[name]
    location = f"zip://run::{zip_file(limited / 'a.zip', entries)}"
    if is_accepted:
        with local(location) as folder:
            assert sum(path.is_file() and not path.is_symlink() for path in folder.rglob("*")) == len(entries)
    else:
        with pytest.raises((ValueError, OSError)) as error, local(location):
            pass
        assert "\n" not in str(error.value)
    assert not list((limited / "scratch").iterdir()) and not (limited / "a").exists()


@pytest.mark.parametrize("stated_size", [0, None, 10])
def test_the_size_of_a_store_is_counted_on_the_way(limited, monkeypatch, stated_size):
    memory, sizes = fsspec.filesystem("memory"), []
    memory.pipe("/untrue/a", bytes(2**22))
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: {"/untrue/a": {"size": stated_size}})
    remove = remote.tempfile.TemporaryDirectory.cleanup
    measure = lambda folder: sizes.extend(p.stat().st_size for p in Path(folder.name).rglob("a"))  # noqa: E731
    monkeypatch.setattr(
        remote.tempfile.TemporaryDirectory, "cleanup", lambda folder: (measure(folder), remove(folder))
    )
    with pytest.raises(ValueError, match="more than it says: at most 1,048,576 bytes"), local("memory://untrue"):
        pass
    assert sizes == [2**20]


def test_other_archives_and_archives_within_archives_are_refused(limited):
    inner = zip_file(limited / "b.zip", {"run/a": b"x"})
    zip_file(limited / "a.zip", {"b.zip": inner.read_bytes()})
    (limited / "bad.zip").write_bytes(b"PK\3\4" + bytes(60))
    for location in (
        "tar://run::a.tar",
        f"zip://run::zip://b.zip::{limited / 'a.zip'}",
        f"zip://run::{limited}/bad.zip",
    ):
        with pytest.raises(ValueError, match="cannot be opened") as error, local(location):
            pass
        assert "\n" not in str(error.value)
