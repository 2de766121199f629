"""Finished runs for the tests of `verify`, each made when it is first used."""

import json

import pytest

from attacks.evaluation.sanity.battery import NAMES
from attacks.experiment.job import job
from attacks.run import compose

TINY = ["data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none", "evaluate.views=8"]
TINY += ["evaluate.refine=1"]
LEAN = [*TINY, "evaluate.batch=2", "evaluate.wide=1.5"]
PARTS = [*TINY, "evaluate.maps=[[angle,scale]]", "evaluate.curves=[angle]", "evaluate.left_out=2"]
PARTS += ["evaluate.deploy=2", "evaluate.pipeline=cv2_linear", "evaluate.explain=2", "evaluate.layers=[stem]"]
PARTS += ["transforms=eot2d", "evaluate.map_pictures=2"]
FAILURE = [*TINY, "data.size=32", "evaluate.failure=1", "evaluate.particles=50"]
DETECTOR = [*TINY, "defence=consistency", "defence.views=2"]
KINDS = {"lean": LEAN, "parts": PARTS, "failure": FAILURE, "patch": TINY, "detector": DETECTOR}
A, B = "astronaut-4-2.png", "chelsea-2-0.png"
SCORES = "scores.safetensors"
#: Sanity checks as metrics.json has them.
CHECK = {"verdict": "passed", "words": "it passed", "figures": {"gained": 1.0, "share": 0.1}}
BATTERY = {
    "failed": [],
    "checks": [{"name": name, **CHECK} for name in NAMES],
    "cost": {"forward": 900.0, "backward": 90.0},
}
#: Smaller parts: by the dotted name of a constant its value.
SMALL_PARTS = {"attacks.experiment.sections.judged.CELLS": 2, "attacks.experiment.sections.judged.CURVE_CELLS": 2}
SMALL_PARTS |= {"attacks.evaluation.rare.splitting.FIRST": 2, "attacks.evaluation.rare.splitting.MAX_DRAWS": 8}


def make_run(folder, overrides, preset="smoke", module=None):
    job(compose(preset, overrides), folder, preset, overrides, module=module)
    return folder


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL_PARTS.items():
            patch.setattr(name, value)
        yield


@pytest.fixture
def runs(shared_runs, small):
    """Finished runs by name."""

    def get(name):
        return shared_runs(f"config={'patch' if name == 'patch' else 'smoke'}", *KINDS[name], constants=SMALL_PARTS)

    return get


def both_records(folder):
    """What manifest.json and metrics.json hold."""
    return [json.loads((folder / f"{name}.json").read_bytes()) for name in ("manifest", "metrics")]
