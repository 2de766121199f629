"""An unchanged picture is not decoded again; whatever the index holds, a shelf is as without it."""

import os
import threading
import warnings

import pytest
import torch
from PIL import Image

from attacks.data import pictures
from attacks.data.images import load_image
from attacks.data.pictures import Shelf, read_files
from attacks.experiment.embeddings import CUT, _blocks
from attacks.runtime.decoding import collect_warnings


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    (tmp_path / "gallery").mkdir()
    for i in range(9):
        write_noise(tmp_path / "gallery" / f"{i}.jpg", i)
    return tmp_path / "gallery"


@pytest.fixture
def decoded(monkeypatch):
    names = []
    monkeypatch.setattr(pictures, "load_image", lambda path: (names.append(path.name), load_image(path))[1])
    return lambda: (sorted(names), names.clear())[0]


def write_noise(path, seed):
    levels = torch.randint(0, 256, (20, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray(levels.numpy()).save(path)


def read(folder, **options):
    return read_files(folder, 16, cache=str(folder.parent), **options)


def is_same(one, other):
    rows = range(len(other))
    plain = ("names", "digests", "labels", "changes", "missing", "clusters")
    return all(getattr(one, key) == getattr(other, key) for key in plain) and one.read(rows).equal(other.read(rows))


def test_only_new_and_changed_files_are_decoded_and_the_shelf_is_as_without_an_index(folder, decoded):
    all_names = [f"{i}.jpg" for i in range(9)]
    read(folder)
    assert decoded() == all_names
    read(folder)
    assert decoded() == []
    write_noise(folder / "3.jpg", 33)
    write_noise(folder / "new.jpg", 34)
    (folder / "5.jpg").unlink()
    shelf = read(folder)
    assert decoded() == ["3.jpg", "new.jpg"]
    assert is_same(shelf, read_files(folder, 16)) and not shelf.notes
    decoded()
    os.utime(folder / "0.jpg", (0, 0))
    read_files(folder, 12, cache=str(folder.parent))
    assert len(decoded()) == 9  # squares of another side
    read(folder)
    assert decoded() == ["0.jpg"]


@pytest.mark.parametrize("place", ["first", "middle", "cut", "empty"])
def test_a_damaged_index_is_reported_and_not_used(folder, decoded, place):
    read(folder)
    (file,) = folder.parent.glob("pictures-*.json")
    content = bytearray(file.read_bytes())
    at = {"first": 0, "middle": len(content) // 2}.get(place)
    if at is not None:
        content[at] ^= 1
    file.write_bytes({"cut": content[:-5], "empty": b""}.get(place, content))
    decoded()
    shelf = read(folder)
    assert len(decoded()) == 9 and "is not as it was written" in shelf.notes[0]
    assert is_same(shelf, read_files(folder, 16))
    decoded()
    read(folder)
    assert decoded() == []


def test_unreadable_files_are_refused_or_left_out_each_time(folder):
    (folder / "4.jpg").write_bytes(b"no picture")
    for _ in range(2):
        assert len(read(folder, unreadable="skip")) == 8
        with pytest.raises(ValueError, match=r"4\.jpg"):
            read(folder)


def test_squares_in_memory_are_those_of_the_files_until_forgetting(folder, decoded, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_CACHE", 5 * 3 * 16 * 16)
    shelf = read_files(folder, 16)
    decoded()
    first = shelf.read(range(9))
    assert decoded() == [f"{i}.jpg" for i in range(5, 9)]
    shelf.forget()
    assert shelf.read(range(9)).equal(first) and len(decoded()) == 9


def test_each_thread_gets_its_own_warnings_and_none_remains():
    first, got, gate = (warnings.filters[:], warnings.showwarning), {}, threading.Barrier(2, timeout=10)

    def work(name):
        with collect_warnings() as texts:
            gate.wait()
            warnings.warn(name, stacklevel=1)
            gate.wait()
        got[name] = texts

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert got == {"one": ["one"], "two": ["two"]} and (warnings.filters, warnings.showwarning) == first


def test_a_picture_that_comes_or_goes_shifts_few_blocks():
    digests = [f"{(i * 2654435761) % 2**32:064x}" for i in range(8 * CUT)]

    def blocks(names):
        shelf = Shelf(names, names, [(64, 64)] * len(names), [None] * len(names), load=None)
        return {tuple(names[row] for row in rows) for rows in _blocks(shelf, 64)}

    parts = blocks(digests)
    assert sorted(name for block in parts for name in block) == sorted(digests) and max(map(len, parts)) <= 64
    for change in (digests[1:], [*digests[:5], *digests[6:]], [digests[-1][::-1], *digests]):
        assert sum(map(len, blocks(change) - parts)) <= CUT + 64
