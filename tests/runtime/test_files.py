"""Files are written whole or not at all."""

import contextlib
import json
import math

import pytest
import torch

from attacks.data.images import save_image
from attacks.runtime.files import atomic, write_json, write_text
from attacks.runtime.tables import read_rows
from attacks.runtime.untrusted import parse_json

# name -> a call that fails while writing
BREAKING = {
    "text": lambda path: write_text(path, "\ud800"),  # half a surrogate pair has no UTF-8
    "json": lambda path: write_json(path, {"a": math.nan}),
    "json type": lambda path: write_json(path, {"a": object()}),
    "image": lambda path: save_image(path, torch.zeros(5, 2, 2)),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "file.png"
    file.write_text("old")
    return file


@pytest.mark.parametrize("write", BREAKING.values(), ids=BREAKING)
def test_old_content_survives_a_failure_without_leftover_files(path, write):
    with pytest.raises((ValueError, TypeError)):
        write(path)
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_the_old_content_stays_until_the_block_has_ended_well(path, error):
    with contextlib.nullcontext() if error is None else pytest.raises(error), atomic(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent  # a rename is atomic within one file system only
        assert path.read_text() == "old"
        if error is not None:
            raise error
    assert path.read_text() == ("new" if error is None else "old") and list(path.parent.iterdir()) == [path]


def test_text_is_utf8_and_json_reads_back_in_order(path):
    write_text(path, "Übung, ≤ 8/255\n")
    assert path.read_bytes() == "Übung, ≤ 8/255\n".encode()
    content = {"b": [1, 2.5, None, True], "a": {"ü": "é"}}
    write_json(path, content)
    assert list(json.loads(path.read_text()).items()) == list(content.items())


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"c": {"a": [], "a": {}}}]', '{"a": 1, "\\u0061": 2}'])
def test_a_key_or_column_twice_in_a_record_is_refused(path, text):
    with pytest.raises(ValueError, match=r"`x` is not JSON .*duplicate key `a`"):
        parse_json(text, "`x`")
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match=r"two columns of one name"):
        read_rows(path)
