"""The script that made the shipped weights: deterministic, and it learns (its full run: docs/pocket-encoder.md)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data import gallery
from scripts.pocket import training
from scripts.pocket.procedural import SIDE, render_procedural

ROOT = Path(__file__).resolve().parents[2]


def output(*arguments):
    """The output of the script."""
    command = [sys.executable, "scripts/train_pocket.py", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment).stdout


def train(out, steps):
    lines = output(out, "--steps", steps, "--batch", 16, "--pictures", 12)
    return re.sub(r", \d+ s$", "", lines, flags=re.MULTILINE)  # the seconds may differ


@pytest.mark.nightly
def test_the_same_command_gives_the_same_file_and_the_loss_falls(tmp_path):
    output_lines = train(tmp_path / "a.safetensors", 8)
    assert train(tmp_path / "b.safetensors", 8) == output_lines
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    first, last = (float(re.search(rf"step {n}: loss ([\d.]+)", output_lines).group(1)) for n in (1, 8))
    assert last < first


@pytest.mark.nightly
def test_the_page_quotes_the_figures_of_the_shipped_file():
    output_lines = output("--judge", "attacks/data/pocket.safetensors")
    page = (ROOT / "docs/pocket-encoder.md").read_text()
    quotation = page[page.index(output_lines.splitlines()[0]) :].split("```")[0]
    ours, theirs = (
        torch.tensor([float(n) for n in re.findall(r"\d+\.\d+", text)]) for text in (output_lines, quotation)
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.01)  # rounding depends on the processor


def numbered_picture(side):
    """A picture whose pixels all differ, (1,side,side,3): equal pixels in two cells would mean an overlap."""
    numbers = torch.arange(side * side).reshape(1, side, side)
    return torch.stack([numbers % 256, numbers // 256, torch.zeros_like(numbers)], dim=-1).to(torch.uint8)


def test_cells_of_a_picture_do_not_overlap_and_are_parts_of_it(monkeypatch):
    monkeypatch.setattr(training, "resize", lambda cells, *_: cells)
    cells = training.Cells(numbered_picture(200), torch.Generator().manual_seed(0))
    for _ in range(20):
        cut = (cells.cut(cells.pictures[0].permute(2, 0, 1)) * 255).round().long()
        numbers = cut[:, 0] + 256 * cut[:, 1]
        assert len(numbers.unique()) == numbers.numel()
        assert torch.equal(numbers[:, 1:] - numbers[:, :-1], torch.full_like(numbers[:, 1:], 200))


@pytest.mark.slow
def test_a_batch_has_cells_of_the_asked_number_size_and_contrast():
    pictures = torch.from_numpy(np.stack([render_procedural((0, i)) for i in range(12)]))
    batch = training.Cells(pictures, torch.Generator().manual_seed(0)).batch(40)
    assert batch.shape == (40, 3, training.SIDE, training.SIDE)
    assert batch.min() >= 0 and batch.max() <= 1
    assert batch.flatten(1).std(dim=1).min() > training.FAINT


@pytest.mark.slow
def test_a_procedural_picture_depends_on_its_seed_alone():
    picture, second, other = render_procedural((3, 1)), render_procedural((3, 1)), render_procedural((3, 2))
    assert picture.shape == (SIDE, SIDE, 3) and picture.dtype == np.uint8
    assert (picture == second).all() and (picture != other).mean() > 0.5


@pytest.mark.slow
def test_training_reads_no_photograph(monkeypatch):
    def refuse_photograph(*_, **__):
        raise AssertionError("a photograph was read")

    monkeypatch.setattr(gallery, "photographs", refuse_photograph)
    monkeypatch.setattr(gallery, "load_image", refuse_photograph)
    monkeypatch.setattr(Image, "open", refuse_photograph)
    pictures = torch.from_numpy(np.stack([render_procedural((0, i)) for i in range(6)]))
    training.train(training.Cells(pictures, torch.Generator().manual_seed(0)), steps=2, batch=8, seed=0)
