"""An encoder that can only be asked: what it is asked, what it answers, and that it has no gradient."""

import numpy as np
import pytest
import torch

from attacks import EOT, PGD, Away, Linf, attack
from attacks.encoders.black_box.asked import BlackBox, Ledger, function
from tests.helpers.questions import module, query_digests
from tests.helpers.wrong import refused


class Victim:
    """Counts the pictures that it is asked about, and the calls."""

    def __init__(self, answer=lambda pixels: pixels.reshape(len(pixels), -1)):
        self.answer, self.pictures, self.calls = answer, [], 0

    def __call__(self, pixels):
        assert pixels.dtype == np.uint8 and pixels.shape[3] == 3
        self.calls += 1
        self.pictures += [picture.tobytes() for picture in pixels]
        return self.answer(pixels)


def test_one_call_of_eight_bits_for_each_picture():
    victim = Victim()
    encoder, images = BlackBox(victim, batch=4), torch.rand(6, 3, 5, 7)
    levels = (images * 255).round()
    torch.testing.assert_close(encoder(images), levels.permute(0, 2, 3, 1).flatten(1))
    assert len(victim.pictures) == 6 and victim.calls == 2
    rows = encoder(torch.cat([levels / 255, images, 1 - images[:1], 1 - images[:1]]))
    torch.testing.assert_close(rows[:6], rows[6:12])
    assert len(victim.pictures) == len(set(victim.pictures)) == len(encoder.ledger) == 7
    shape = BlackBox(lambda pixels: [[picture.shape[0]] for picture in pixels])  # the same bytes, other pictures
    assert float(shape(torch.zeros(1, 3, 2, 3))) == 2 and float(shape(torch.zeros(1, 3, 3, 2))) == 3
    refused("as many numbers as those before, 105; got 75", encoder, torch.rand(1, 3, 5, 5))


def test_a_gradient_is_refused_before_anything_is_asked():
    victim = Victim()
    encoder, images = BlackBox(victim, "http://host"), torch.rand(1, 3, 4, 4)
    refused(r"http://host .*no gradient.*optimiser=square", encoder, images.clone().requires_grad_())
    parts = {"encoder": encoder, "objective": Away(), "perturbation": Linf(8 / 255)}
    refused("no gradient", next, attack(images, torch.ones(1, 48), optimiser=PGD(), eot=EOT(views=1), **parts))
    assert not victim.calls
    with torch.no_grad():
        assert encoder(images.requires_grad_()).shape == (1, 48)


def test_scores_are_compared_by_their_pattern_and_same_by_its_value():
    images = torch.rand(3, 3, 4, 4)
    scores = np.array([[0.9, 0.1, 0.5], [0.8, 0.7, 0.6], [0.2, 0.9, 0.1]])
    rows = BlackBox(lambda _: scores, answer="scores")(images)
    expected = torch.tensor(scores - scores.mean(1, keepdims=True), dtype=torch.float32)
    torch.testing.assert_close(rows, expected)
    values = BlackBox(lambda _: [1, 0, True], answer="same")(images)
    torch.testing.assert_close(values @ values.T, torch.tensor([[1.0, 0, 1], [0, 1, 0], [1, 0, 1]]))


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("vector", [[1.0, 2.0]]),
        ("vector", [1.0, 2.0]),
        ("vector", [[], []]),
        ("vector", [[1.0, 2.0], [1.0, float("nan")]]),
        ("vector", [[1.0], [2.0, 3.0]]),
        ("vector", "text"),
        ("vector", None),
        ("vector", [[{}], [{}]]),
        ("same", [0.5, 1]),
        ("same", [[0, 1], [1, 0]]),
    ],
)
def test_a_malformed_answer_is_one_line(answer, content):
    encoder = BlackBox(lambda _: content, "mine", answer=answer)
    refused("encoder mine: the answer must be", encoder, torch.rand(2, 3, 4, 4))
    assert not len(encoder.ledger)


def test_the_users_function_is_found_in_the_working_directory(tmp_path, monkeypatch):
    module(tmp_path, monkeypatch)
    images = torch.rand(2, 3, 16, 16)
    expected = (images[:, :, ::4, ::4] * 255).round().permute(0, 2, 3, 1).flatten(1) - 120
    torch.testing.assert_close(function("victim:corners")(images), expected)
    assert len(query_digests(tmp_path)) == 2
    (tmp_path / "most").write_text("2")
    with pytest.raises(ValueError, match=r"callable:victim:corners failed: RuntimeError: first line second line"):
        function("victim:corners")(1 - images)


@pytest.mark.parametrize("model", ["victim", "victim:", "victim:none", "victim:number", "no_such:f", "a b:c"])
def test_what_is_no_function_is_refused(tmp_path, monkeypatch, model):
    module(tmp_path, monkeypatch)
    refused("`model`", function, model)


PICTURES = np.arange(3 * 2 * 2 * 3, dtype=np.uint8).reshape(3, 2, 2, 3)
ROWS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def ask(pixels):
    """Row by the number of the picture."""
    return ROWS[pixels[:, 0, 0, 0] // 12]


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
            rows = ledger.answers(PICTURES, lambda part, counts=counts: counts.append(len(part)) or ask(part), 3)
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
