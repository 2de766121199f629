"""The script that made the shipped weights: deterministic, and it learns (its full run: docs/pocket-encoder.md)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attacks.data.gallery import HELD_OUT, photographs
from scripts.train_pocket import Crops

ROOT = Path(__file__).resolve().parents[2]


def output(*arguments):
    """The output of the script."""
    command = [sys.executable, "scripts/train_pocket.py", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment).stdout


def train(out, steps):
    lines = output(out, "--steps", steps, "--batch", 16)
    return re.sub(r", \d+ s$", "", lines, flags=re.MULTILINE)  # the seconds may differ


@pytest.mark.slow
def test_the_same_command_gives_the_same_file_and_the_loss_falls(tmp_path):
    printed = train(tmp_path / "a.safetensors", 8)
    assert train(tmp_path / "b.safetensors", 8) == printed
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    first, last = (float(re.search(rf"step {n}: loss ([\d.]+)", printed).group(1)) for n in (1, 8))
    assert last < first


@pytest.mark.slow
def test_the_page_quotes_the_figures_of_the_shipped_file():
    printed = output("--judge", "attacks/data/pocket.safetensors")
    page = (ROOT / "docs/pocket-encoder.md").read_text()
    quoted = page[page.index(printed.splitlines()[0]) :].split("```")[0]
    ours, theirs = (torch.tensor([float(n) for n in re.findall(r"\d+\.\d+", text)]) for text in (printed, quoted))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)  # rounding depends on the processor


@pytest.mark.slow
def test_held_out_photographs_are_not_used_for_crops():
    seen = Crops(torch.Generator().manual_seed(0)).photos
    for name in HELD_OUT:
        assert not any(
            photo.shape == photographs()[name].shape and torch.equal(photo, photographs()[name]) for photo in seen
        )
    assert len(seen) == len(photographs()) - len(HELD_OUT)


def test_crops_of_a_batch_do_not_overlap():
    crops = Crops(torch.Generator().manual_seed(0))
    # A photograph whose pixels all differ: equal pixels in two crops would mean an overlap.
    height, width = 300, 400
    crops.photos = [
        torch.arange(height * width).reshape(1, height, width).expand(3, -1, -1).double() / (height * width)
    ]
    seen = torch.cat([cell.flatten() for cell in crops.cells() if cell.std() >= 0])
    assert len(seen) > 10_000 and len(seen.unique()) * 3 == len(seen)
