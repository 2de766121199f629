"""A program as a black box."""

import gc
import os
import shlex
import sys
import time

import numpy as np
import pytest
import torch

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
@pytest.mark.parametrize(("kind", "why"), [(1, "ended.*7"), (2, "no answer in 8 s"), (3, "no JSON")])
def test_a_program_that_fails_is_one_line_and_nothing_is_lost(line, tmp_path, kind, why):
    encoder, began = command(line, timeout=8 if kind == 2 else 30), time.monotonic()
    images, expected = pictures(9, kind, 8)
    with pytest.raises(ValueError, match=why) as caught:
        encoder(images)
    assert "\n" not in str(caught.value) and len(encoder.ledger) == 1 and time.monotonic() - began < 20
    np.testing.assert_array_equal(encoder(images[2:]), expected[2:])
    assert len(pids(tmp_path)) == 2


def test_bad_command_lines_are_refused():
    for model in ("", "'"):
        with pytest.raises(ValueError, match="`model`"):
            command(model)
    with pytest.raises(ValueError, match="cannot be started: No such file"):
        command("no-such-program")(pictures(9)[0])
