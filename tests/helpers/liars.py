"""Ways to edit a finished run: the edit alone, and with all digests made anew."""

import csv
import json
import shutil

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from attacks.experiment.directory import finish


def file_bytes(folder):
    """Make the digests fit again, as somebody who knows their rules would."""
    content = json.loads((folder / "metrics.json").read_text())
    finish(folder, json.loads((folder / "manifest.json").read_text()), content)


def pixel(name, arm="eot", size=1, step=1, delta=False):
    """Move a square of a picture by a level, toward the clean one where it may not move away; perhaps also in the
    perturbation."""

    def edit(folder):
        clean, path = (folder / "pictures" / part / name for part in ("clean", arm))
        first, pixels = (np.asarray(Image.open(part)).astype(int) for part in (clean, path))
        part = pixels[8 : 8 + size, 8 : 8 + size]
        part += np.where(part >= first[8 : 8 + size, 8 : 8 + size], -step, step)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
        if delta:
            row = sorted(part.name for part in path.parent.iterdir()).index(name)
            change = torch.from_numpy(pixels - first).permute(2, 0, 1) / 255

            def replace_row(columns):
                columns[arm][row] = change

            tensors("perturbation", replace_row)(folder)

    return edit


def cells(name, change, *rows):
    """Change rows (all of these numbers) of a table."""

    def edit(folder):
        path = folder / f"{name}.csv"
        with path.open(newline="") as file:
            table = list(csv.DictReader(file))
        for row in rows:
            change(table[row])
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)

    return edit


def cell(name, column, row=0, by=0.01):
    """Add to a number of a table."""
    return cells(name, lambda values: values.update({column: repr(float(values[column]) + by)}), row)


def lines(name, change):
    """Change the lines of a text file."""

    def edit(folder):
        path = folder / name
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return edit


def entry(name, *place, by=0.01, value=None):
    """Add to a number of a JSON file, or replace its value."""

    def edit(folder):
        content = json.loads((folder / name).read_text())
        node = content
        for key in place[:-1]:
            node = node[key]
        node[place[-1]] = node[place[-1]] + by if value is None else value
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")

    return edit


def tensors(name, change):
    """Change the tensors of a file."""

    def edit(folder):
        columns = load_file(folder / f"{name}.safetensors")
        change(columns)
        save_file({key: value.contiguous() for key, value in columns.items()}, folder / f"{name}.safetensors")

    return edit


def combine(*edits):
    """Several edits."""

    def edit(folder):
        for part in edits:
            part(folder)

    return edit


def delete(name):
    """Remove a file or a folder."""

    def edit(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return edit


def swap(first, second):
    """Exchange two files."""

    def edit(folder):
        paths = folder / first, folder / second
        data = [path.read_bytes() for path in paths]
        for path, part in zip(paths, reversed(data), strict=True):
            path.write_bytes(part)

    return edit
