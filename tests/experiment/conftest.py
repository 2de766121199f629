"""Small runs that are forked, for tests that stop them anywhere."""

import sys
import tempfile
from pathlib import Path

import pytest
import skimage.data
from PIL import Image

from tests.helpers.crashes import Nursery, record
from tests.helpers.processes import facts

#: A run of two units that writes every kind of file, in a second.
WORDS = ["data=folder", "data.size=32", "attack.steps=1", "attack.views=1", "evaluate.batch=1"]
WORDS += ["evaluate.views=2", "evaluate.refine=0", "evaluate.one_view=false", "evaluate.maps=[]"]
WORDS += ["evaluate.curves=[]", "evaluate.left_out=0", "evaluate.deploy=0", "evaluate.explain=0", "evaluate.wide=1"]
WORDS += ["sanity=none", "engine=fixed", "engine.threads=1", "checkpoint.steps=1"]
VARIANTS = {"pictures": ["config=smoke"], "patch": ["config=patch", "perturbation.size=[8,8]"]}
#: Everything that a checkpoint holds: steps of an attack, arms, left-out stages, explanations.
VARIANTS["parts"] = ["config=evaluate", "attack.steps=2", "attack.views=2", "transforms=eot2d", "evaluate.refine=1"]
VARIANTS["parts"] += ["evaluate.left_out=1", "evaluate.explain=1", "evaluate.batch=2"]


@pytest.fixture(scope="session")
def top():
    """In memory if possible: on a disk every sync takes time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def start(top):
    """The command line of a run in a folder."""
    pictures = top / "photos"
    pictures.mkdir()
    photo = Image.fromarray(skimage.data.chelsea())
    for x in (80, 160):
        photo.crop((x, 60, x + 64, 124)).save(pictures / f"{x}.png")
    folders = [f"data.path={pictures}", f"data.gallery={pictures}"]
    return lambda folder, variant="pictures": [*WORDS, *VARIANTS[variant], *folders, f"hydra.run.dir={folder}"]


@pytest.fixture(scope="session")
def nursery(top, start):
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    pool = Nursery(start(top / "warm"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def recording(top, start, nursery):
    """By variant, when first asked for: the facts of a whole run, and the folder with its crashes."""
    recordings = {}

    def get(variant):
        if variant not in recordings:
            run, crashes = top / f"run-{variant}", top / f"crashes-{variant}"
            code, text = nursery.run(start(run, variant), record, run, crashes)
            assert code == 0, text
            recordings[variant] = facts(run), crashes
        return recordings[variant]

    return get
