"""A program as a black box."""

import contextlib
import gc
import os
import shlex
import sys
import time

import numpy as np
import pytest
import torch

from attacks.encoders.black_box import command as module
from attacks.encoders.black_box.asked import LEDGER, ledger_at
from attacks.encoders.black_box.command import command

PROGRAM = """
import io, json, os, sys, time
import numpy as np
from PIL import Image
print(os.getpid(), file=open("pids", "a"))
while line := sys.stdin.buffer.readline():
    pixels = np.asarray(Image.open(io.BytesIO(sys.stdin.buffer.read(int(line)))))
    kind = int(pixels[0, 0, 0])
    if kind == 1: sys.exit(7)
    if kind == 5: print([1] * 60, flush=True)
    if kind == 6: print("[" * 5000, flush=True)
    if kind == 7: seen = [*globals().get("seen", ()), 1]; pixels = pixels + 20.0 * len(seen)
    if kind == 2: time.sleep(60)
    print("no json" if kind == 3 else json.dumps(pixels.ravel().tolist()), flush=True)
"""


@pytest.fixture
def line(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return f"{shlex.quote(sys.executable)} mine.py"


def pictures(*first):
    levels = torch.randint(4, 256, (len(first), 3, 4, 5), generator=torch.Generator().manual_seed(0))
    levels[:, 0, 0, 0] = torch.tensor(first)
    return levels / 255, levels.permute(0, 2, 3, 1).flatten(1).float()


def pids(folder):
    return [int(word) for word in (folder / "pids").read_text().split()]


@pytest.mark.slow
def test_a_program_is_started_once_and_ends_with_its_encoder(line, tmp_path):
    encoder = command(line)
    assert not (tmp_path / "pids").exists()
    images, expected = pictures(9, 8, 9)
    np.testing.assert_array_equal(encoder(images[:2]), expected[:2])
    np.testing.assert_array_equal(encoder(images), expected)
    (pid,) = pids(tmp_path)
    del encoder
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reason"), [(1, "ended.*7"), (2, "no answer in 4 s"), (3, "no JSON"), (6, "4096 bytes")]
)
def test_a_program_that_fails_is_one_line_and_loses_no_answer(line, tmp_path, monkeypatch, kind, reason):
    monkeypatch.setattr(module, "MOST_BYTES", 4096)
    encoder, began = command(line, timeout=4 if kind == 2 else 30), time.monotonic()
    images, expected = pictures(9, kind, 8)
    with pytest.raises(ValueError, match=reason) as info:
        encoder(images)
    assert "\n" not in str(info.value) and len(encoder.ledger) == 1 and time.monotonic() - began < 20
    np.testing.assert_array_equal(encoder(images[2:]), expected[2:])
    assert len(pids(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [(9, 8, 10), (5, 9, 8), (9, 5, 8), (9, 8, 5), (9, 8, 7)], ids=str)
def test_answers_that_belong_to_other_pictures_are_no_evidence(line, tmp_path, kinds):
    """A line too many shifts all answers that follow; whether it is met at once depends on the program's buffer."""
    encoder, wrong = command(line), kinds != (9, 8, 10)
    with contextlib.ExitStack() as stack:
        if wrong:
            stack.enter_context(pytest.raises(ValueError, match="start a new run"))
        with ledger_at(encoder, tmp_path / LEDGER):
            encoder(pictures(*kinds)[0])
            encoder.confirm()
    with contextlib.ExitStack() as stack:
        if wrong:
            stack.enter_context(pytest.raises(ValueError, match="two answers"))
        with ledger_at(command(line), tmp_path / LEDGER):
            pass


DRIPS = "import sys, time\nwhile True: sys.stdout.write('1'); sys.stdout.flush(); time.sleep(0.05)"


@pytest.mark.parametrize("program", ["import time; time.sleep(60)", DRIPS], ids=["reads nothing", "drips"])
def test_the_time_is_that_of_the_whole_answer(program):
    images, began = torch.rand(1, 3, 200, 200), time.monotonic()  # more bytes than a pipe holds
    with pytest.raises(ValueError, match=r"no answer in 0\.5 s"):
        command(shlex.join([sys.executable, "-c", program]), timeout=0.5)(images)
    assert time.monotonic() - began < 10


def test_bad_command_lines_are_refused():
    for model in ("", "'"):
        with pytest.raises(ValueError, match="`model`"):
            command(model)
    with pytest.raises(ValueError, match="cannot be started: No such file"):
        command("no-such-program")(pictures(9)[0])
