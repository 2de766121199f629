"""Runs killed at any moment and resumed end with the bytes of an uninterrupted run."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import skimage.data
from PIL import Image

from tests.helpers.processes import ended, facts, started

#: A run with everything that a checkpoint holds: units, arms, left-out stages, maps; saved at each step.
WORDS = [
    "config=evaluate",
    "data=folder",
    "data.size=32",
    "attack.steps=4",
    "attack.views=2",
    "evaluate.batch=2",
    "evaluate.views=4",
    "evaluate.refine=1",
    "evaluate.one_view=false",
    "evaluate.maps=[]",
    "evaluate.curves=[]",
    "evaluate.left_out=1",
    "evaluate.deploy=0",
    "evaluate.explain=1",
    "transforms=eot2d",
    "sanity=none",
    "engine=fixed",
    "engine.threads=1",
    "checkpoint.steps=1",
]
#: Kills of a run before it runs to its end.
KILLS = 3


@pytest.fixture(scope="module")
def go_on(tmp_path_factory):
    """The command that resumes a run of three pictures, or starts it if there is none."""
    pictures = tmp_path_factory.mktemp("pictures")
    photo = Image.fromarray(skimage.data.chelsea())
    for x in (80, 160, 240):
        photo.crop((x, 60, x + 64, 124)).save(pictures / f"{x}.png")

    def command(folder):
        begun = (folder / "manifest.json").exists()
        return [f"resume={folder}"] if begun else [*WORDS, f"data.path={pictures}", f"hydra.run.dir={folder}"]

    return command


@pytest.fixture(scope="module")
def whole(tmp_path_factory, go_on):
    """An uninterrupted run: its files, and its duration."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    began = time.monotonic()
    assert ended(started(go_on(folder), f"{folder}.log")) == 0, Path(f"{folder}.log").read_text()
    return facts(folder), time.monotonic() - began


@pytest.mark.nightly
@pytest.mark.parametrize("trial", range(20))
def test_a_run_killed_at_random_moments_ends_with_the_same_files(whole, go_on, tmp_path, trial):
    expected, seconds = whole
    folder, chance = tmp_path / "run", random.Random(trial)
    for _ in range(KILLS):
        if (folder / "metrics.json").exists():
            break
        process = started(go_on(folder), f"{folder}.log")
        process.join(chance.uniform(0, seconds))
        process.kill()
        ended(process)
    if not (folder / "metrics.json").exists():
        assert ended(started(go_on(folder), f"{folder}.log")) == 0, Path(f"{folder}.log").read_text()
    elif (folder / "checkpoint").exists():  # killed in its last operation
        assert ended(started(go_on(folder), f"{folder}.log")) == 1
    assert facts(folder) == expected
    assert not (folder / "checkpoint").exists() and not list(folder.rglob("*.tmp"))


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_run_that_is_stopped_prints_how_to_resume(whole, go_on, tmp_path, number):
    expected, _ = whole
    folder = tmp_path / "run"
    process = started(go_on(folder), f"{folder}.log")
    while not list(folder.glob("checkpoint/*.eot.now.safetensors")) and process.exitcode is None:
        time.sleep(0.01)
    os.kill(process.pid, number)
    assert ended(process) == 128 + number
    last = Path(f"{folder}.log").read_text().splitlines()[-1]
    assert last == f"stopped by {number.name}; go on with: python -m attacks.run resume={folder}"
    assert ended(started(go_on(folder), f"{folder}.log")) == 0
    assert facts(folder) == expected
