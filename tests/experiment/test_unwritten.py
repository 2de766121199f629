"""A failed write is an error of one line, and no complete file is touched."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from attacks.data.images import save_image
from attacks.runtime import files
from attacks.runtime.files import Unwritten, atomic, clean, write_bytes, write_json, write_text

BIG = 1 << 17
# name -> a call that writes more than a disk of 64 KB holds
WRITERS = {
    "bytes": lambda path: write_bytes(path, bytes(BIG)),
    "text": lambda path: write_text(path, "x" * BIG),
    "json": lambda path: write_json(path, "x" * BIG),
    "image": lambda path: save_image(path, torch.rand(3, 256, 256)),
    "tensors": lambda path: tensors(path),
}


def tensors(path):
    with atomic(path) as temporary:
        save_file({"a": torch.zeros(BIG)}, temporary)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A disk of 64 KB."""
    folder = tmp_path_factory.mktemp("small")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may make a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def refusal(write, path, message):
    """Writing fails in one line, and leaves the folder as it was."""
    contents = {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(Unwritten, match="what was complete before is untouched") as error:
        write(path)
    assert f"{path} cannot be written: {message}" in str(error.value)
    assert "\n" not in str(error.value)
    assert {file: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == contents
    return error.value


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_full_disk_is_named(small, write, old):
    path = small / "file.png"
    path.unlink(missing_ok=True)
    if old is not None:
        path.write_bytes(old)
    assert refusal(write, path, "no space left on device").errno == errno.ENOSPC


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_beyond_the_limit_of_the_process_is_named(tmp_path, name):
    resource = pytest.importorskip("resource")
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BIG // 4, limit[1]))
    try:
        refusal(WRITERS[name], tmp_path / "file.png", "file too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_long_name_an_existing_folder_and_a_missing_folder_are_named(tmp_path, write):
    refusal(write, tmp_path / ("x" * 300), "file name too long")
    (tmp_path / "folder").mkdir()
    refusal(write, tmp_path / "folder", "is a directory")
    with pytest.raises(Unwritten, match="no such file or directory"):
        write(tmp_path / "none" / "file")


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_missing_permission_is_named(tmp_path, write):
    tmp_path.chmod(0o500)
    try:
        refusal(write, tmp_path / "file.png", "permission denied")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_the_reason_is_named_at_every_write(tmp_path, monkeypatch, number, call):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*((files.os, "fsync") if call == "fsync" else (Path, "replace")), fail)
    reason = os.strerror(number).lower()
    assert refusal(lambda path: write_text(path, "new"), path, reason).errno == number
    assert path.read_text() == "old"


def test_errors_unrelated_to_the_disk_are_not_replaced(tmp_path):
    for error in (
        OSError("broken data stream"),
        FileNotFoundError(2, "no", "other"),
        RuntimeError("(os error 9999)"),
    ):
        with pytest.raises(type(error)) as info, atomic(tmp_path / "file"):
            raise error
        assert info.value is error


def test_the_file_is_synced_before_the_rename_and_then_the_folder(tmp_path, monkeypatch):
    calls = []
    replace = Path.replace
    monkeypatch.setattr(files.os, "fsync", lambda handle: calls.append(stat.S_ISDIR(os.fstat(handle).st_mode)))
    monkeypatch.setattr(Path, "replace", lambda *arguments: (calls.append("replace"), replace(*arguments)))
    write_text(tmp_path / "file", "new")
    assert calls == [False, "replace", True]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES])
def test_a_file_system_that_cannot_sync_folders_gives_no_error(tmp_path, monkeypatch, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "open", fail)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path):
    script = (
        "import os, sys; from attacks.runtime.files import atomic\n"
        "with atomic(sys.argv[1]) as t: t.write_text('half'); os.kill(os.getpid(), 9)"
    )
    root, below = Path(__file__).resolve().parents[2], tmp_path / "below"
    below.mkdir()
    for path in (tmp_path / "file.png", below / "file.png"):
        subprocess.run([sys.executable, "-c", script, str(path)], cwd=root, check=False)
    assert all(len(list(folder.glob(".*.tmp"))) == 1 for folder in (tmp_path, below))
    remaining = [tmp_path / name for name in ("file.png", ".file.123.tmp", "a.tmp", ".tmp")]
    for file in remaining:
        file.write_text("")
    clean(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(remaining)


@settings(max_examples=30)
@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_any_file_name_of_the_file_system_is_possible(tmp_path_factory, name):
    path = tmp_path_factory.getbasetemp() / "names" / name
    path.parent.mkdir(exist_ok=True)
    if name in (".", "..") or len(name.encode()) > 255:
        return
    write_text(path, "new")
    assert path.read_text() == "new"
    path.unlink()
