"""A small evaluation in batches, for the tests of what it finds and of how it goes on after a stop."""

import json

import pytest

from tests.run.test_run import call

TINY = [
    "config=evaluate",
    "data.count=3",
    "data.size=64",
    "attack.steps=2",
    "attack.views=2",
    "evaluate.batch=2",
    "evaluate.views=4",
    "evaluate.refine=1",
    "sanity=none",
]
#: Without the parts that take the most of a small run.
LEAN = ["evaluate.maps=[]", "evaluate.curves=[]", "evaluate.left_out=0", "evaluate.deploy=0", "evaluate.explain=0"]
FIRST = "000000-000002.safetensors"
FILES = ("per_image.csv", "perturbation.safetensors", "adversarial.png", "steps.csv", "manifest.json")


def without_seconds(folder):
    content = json.loads((folder / "metrics.json").read_text())
    content.pop("cost")
    content.pop("costs")
    return content


def whole_run(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder}") == 0
    return folder
