"""Small runs of encoders that can only be asked, and what they were asked about."""

import sys

from PIL import Image

#: A run of two small pictures in two batches, with every arm, in a second or two.
WORDS = ["config=smoke", "data=folder", "data.size=32", "optimiser=square", "attack.steps=null"]
WORDS += ["attack.gradients=8", "evaluate.batch=1", "evaluate.views=4", "engine.threads=1"]
#: A function as a user's module has it: it notes each picture, and fails after as many as the file `most` says.
SOURCE = """
import hashlib
from pathlib import Path
import numpy as np

HERE = Path(__file__).parent

def corners(pixels):
    most, seen = HERE / "most", (HERE / "seen").read_text().split() if (HERE / "seen").exists() else []
    if most.exists() and len(seen) + len(pixels) > int(most.read_text()):
        raise RuntimeError("first line\\nsecond line")
    for picture in pixels:
        with (HERE / "seen").open("a") as file:
            file.write(hashlib.sha256(picture.tobytes()).hexdigest() + "\\n")
    step = pixels.shape[1] // 4
    small = pixels[:, : 4 * step : step, : 4 * step : step].reshape(len(pixels), -1).astype(np.float32)
    return small - 120

def enrolled(pixels):
    small = corners(pixels)
    return (small.max(1) - small.min(1) < 150).astype(float)

number = 3
"""


def pictures(folder):
    """The words of a run on two pictures in a folder."""
    folder.mkdir()
    photo = Image.open("attacks/data/photos/chelsea.png").convert("RGB")
    for x in (80, 160):
        photo.crop((x, 60, x + 64, 124)).save(folder / f"{x}.png")
    return [f"data.path={folder}", f"data.gallery={folder}"]


def module(folder, monkeypatch):
    """The folder of a module `victim` of the user's own, which is the working directory."""
    (folder / "victim.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "victim", raising=False)


def query_digests(folder):
    """The digests of the pictures that the function has been asked about, in order."""
    return (folder / "seen").read_text().split() if (folder / "seen").exists() else []


def refusal(capsys, code):
    """The one line of an error."""
    assert code == 1
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(error) == 1
    return error[0]
