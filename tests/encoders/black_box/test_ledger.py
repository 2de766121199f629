"""The file of answers: it is whole after any kill, and no answer is lost or asked for twice."""

import numpy as np
import pytest

from attacks.encoders.black_box.asked import Ledger

PICTURES = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
ROWS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def ask(pixels):
    """Row by the number of the picture."""
    return ROWS[pixels[:, 0, 0, 0] // 12]


def no_call(_):
    raise AssertionError("asked twice")


@pytest.mark.slow
def test_a_file_cut_anywhere_keeps_its_whole_lines(tmp_path):
    path, first = tmp_path / "q.jsonl", Ledger()
    with first.open(path):
        first.answers(PICTURES, ask, 1)
    data = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        ledger, counts = Ledger(), []
        with ledger.open(path):
            assert len(ledger) == sum(end <= cut for end in ends)
            rows = ledger.answers(
                PICTURES, lambda pixels, counts=counts: counts.append(len(pixels)) or ask(pixels), 3
            )
        np.testing.assert_array_equal(rows, ROWS)
        assert sum(counts) == 3 - sum(end <= cut for end in ends)
        assert path.read_bytes() == data


def test_answers_before_an_error_stay_in_the_file(tmp_path):
    ledger = Ledger()

    def two_answers(pixels):
        if pixels[0, 0, 0, 0] == 24:
            raise ValueError("no more")
        return ask(pixels)

    with pytest.raises(ValueError, match="no more"), ledger.open(tmp_path / "q.jsonl"):
        ledger.answers(PICTURES, two_answers, 1)
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == len(ledger) == 2


@pytest.mark.parametrize("line", ["{}", "[]", "nonsense", '{"picture": "ab", "answer": [1]}', "\x00\x01"])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "q.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match="line 1 is damaged"), Ledger().open(path):
        pass


def test_only_one_process_appends(tmp_path):
    path = tmp_path / "q.jsonl"
    with Ledger().open(path), pytest.raises(ValueError, match="another process"), Ledger().open(path):
        pass
    with Ledger().open(path):
        pass
