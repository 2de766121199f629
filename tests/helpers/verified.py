"""Finished runs for the tests of `verify`, each made when it is first used."""

import json

import pytest

from attacks.evaluation.rare import splitting
from attacks.evaluation.sanity.battery import NAMES
from attacks.experiment import sections
from attacks.experiment.job import job
from attacks.run import compose

TINY = ["data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none", "evaluate.views=8"]
TINY += ["evaluate.refine=1"]
LEAN = [*TINY, "evaluate.batch=2", "evaluate.wide=1.5"]
PARTS = [
    *TINY,
    "evaluate.maps=[[angle,scale]]",
    "evaluate.curves=[angle]",
    "evaluate.left_out=2",
    "evaluate.deploy=2",
    "evaluate.pipeline=cv2_linear",
]
PARTS += ["evaluate.explain=2", "evaluate.layers=[stem]", "transforms=eot2d", "evaluate.map_pictures=2"]
FAILURE = [*TINY, "data.size=32", "evaluate.failure=1", "evaluate.particles=50"]
KINDS = {"lean": LEAN, "parts": PARTS, "failure": FAILURE, "patch": TINY}
A, B = "astronaut-4-2.png", "chelsea-2-0.png"
SCORES = "scores.safetensors"
#: Sanity checks as metrics.json has them.
BATTERY = {
    "failed": [],
    "checks": [{"name": name, "verdict": "passed", "words": "it passed", "figures": {}} for name in NAMES],
    "cost": {"forward": 900.0, "backward": 90.0},
}
_done = {}


def made(folder, overrides, preset="smoke", module=None):
    job(compose(preset, overrides), folder, preset, overrides, module=module)
    return folder


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "CELLS", 2)
        patch.setattr(sections, "CURVE_CELLS", 2)
        patch.setattr(splitting, "FIRST", 2)
        patch.setattr(splitting, "MOST", 8)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small):
    """Runs by name, each made once in a process."""

    def get(name):
        if name not in _done:
            preset = "patch" if name == "patch" else "smoke"
            _done[name] = made(tmp_path_factory.mktemp("runs") / name, KINDS[name], preset)
        return _done[name]

    return get


def both(folder):
    """What manifest.json and metrics.json hold."""
    return [json.loads((folder / f"{name}.json").read_bytes()) for name in ("manifest", "metrics")]
