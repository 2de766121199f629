"""Command lines that nobody should type: one line, exit code 1, and nothing has happened."""

import re

import pytest

from tests.helpers.sampled import mostly_nightly, mostly_slow
from tests.helpers.wrong import desk as desk

SMOKE = "config=smoke"
#: Words of a command line -> what is said. {here} is the working directory.
WORDS = {
    "config=nowhere": "nowhere",
    "config=./nowhere.yaml": "does not exist",
    "config=../../etc/passwd": "must name a choice",
    "config=.": "Could not find|must",
    "config=": "config",
    "config=smoke attack.stepz=3": "stepz",
    "config=smoke +attack.stepz=3": "stepz",
    "config=smoke ++attack.stepz=3": "stepz",
    "config=smoke +whatever=1": "whatever",
    "config=smoke ++encoder._target_=os.system": "_target_",
    "config=smoke +encoder={_target_:os.system}": "_target_|encoder",
    "config=smoke ++seed={a:1}": "seed",
    "config=smoke ~attack": "attack",
    "config=smoke ~attack.steps": "attack.steps",
    "config=smoke ~evaluate": "evaluate",
    "config=smoke ~seedling": "seedling",
    "config=smoke attack=nowhere": "nowhere",
    "config=smoke attack=[single,suite]": "attack",
    "config=smoke encoder=../../x": "must name a choice",
    "config=smoke seed=${oc.env:HOME}": "environment",
    "config=smoke +note=${oc.env:HOME}": "environment",
    "config=smoke data.path=x": "path",
    "config=smoke seed=[": "no viable alternative|mismatched|token",
    "config=smoke seed": "`seed` must be KEY=VALUE",
    "config=smoke quickstart": "did you mean config=quickstart",
    "data.count=2": "no preset is given",
    "config=smoke --steps 4": "did you mean attack.steps",
    "config=smoke =1": "must be KEY=VALUE",
    "config=smoke encoder=torchscript": "`encoder.model` has no value",
    "config=smoke tracker=mlflow tracker.uri=ftp://a": "tracker.uri",
    "config=smoke tracker=mlflow tracker.uri=http://me:canary@host": "holds the name or password",
    "config=smoke tracker=wandb tracker.mode=shared": "offline, online",
    "config=smoke show=everything": "`show`",
    "config=smoke engine.device=toaster": "engine.device",
    "config=smoke engine.reuse={here}": "manifest.json",
    "--config-path=/etc config=smoke": "refused",
    "--config-name=other": "refused",
    "--config-dir={here}/none config=smoke": "none",
    "--experimental-rerun=x.pickle": "refused",
    "hydra.searchpath=[/etc] config=smoke": "refused",
    "-m config=smoke attack.steps=x,y hydra.sweep.dir=out": "steps",
    "resume=": "must be the directory of a run",
    "resume={here}/none": "must be the directory of a run",
    "resume={here}": "manifest.json",
    "resume={here} attack.steps=3": "manifest.json",
    "config=smoke resume={here}": "manifest.json",
}
#: Numbers that mean nothing, or more than any machine has.
NUMBERS = {
    "attack.steps": (0, -1, "nan", "inf", "1e3", 10**30),
    "attack.views": (0, -1),
    "attack.restarts": (0,),
    "attack.stop": ("nan", "inf", "-inf"),
    "perturbation.eps": (0, -1, "nan", "inf", "1/0", "abc", "8/255/3"),
    "optimiser.rel_step_size": (0, -1, "nan", "inf"),
    "evaluate.views": (0, 1, -5),
    "evaluate.refine": (-1,),
    "evaluate.batch": (0, -1),
    "evaluate.wide": (0, "nan", "inf", -2),
    "evaluate.neighbours": (-1,),
    "evaluate.left_out": (-1,),
    "data.size": (0, 7, -64, 10**9),
    "data.count": (0, -1, 10**9),
    "seed": ("nan", 1.5, "x"),
    "engine.chunk": (0, -1, "many"),
    "engine.threads": (0, -1, 10**6),
    "transforms.value": ("nan", 2, "grey"),
    "transforms.stages.affine.degrees": ("nan", "inf", "[20,-20]", "x", "[1,2,3]"),
    "transforms.stages.affine.scale": (0, -1, "nan", "[0,1]", "1e30"),
    "transforms.stages.perspective.jitter": (-1, 2, "nan"),
    "transforms.stages.downscale.size": (0, -3, "nan", "[96,48]", 10**9),
    "transforms.stages.downscale.kernel": ("none",),
    "transforms.kernel": ("cubic",),
    "transforms.border": ("wrap",),
}
MORE = {
    "risk=cvar risk.alpha={}": (0, -1, 2, "nan"),
    "risk=worst_of risk.k={}": (0, -1, 3),
    "risk=softmax risk.temperature={}": (0, -1, "nan", "inf"),
    "penalty=tv penalty.weight={}": (-1, "nan", "inf"),
    "config=patch perturbation.size={}": ("[0,4]", "[-1,4]", "[1000000,1000000]", "5"),
    "config=patch perturbation.quad={}": ("[[0,0],[0,0],[0,0],[0,0]]", "[[nan,0],[1,0],[1,1],[0,1]]", "[1]"),
    "config=patch perturbation.width_mm={}": (0, -1, "nan", "inf"),
    "sanity=short sanity.steps={}": (0, -1),
}


@pytest.mark.parametrize("words", mostly_slow(WORDS, 3))
def test_a_bad_command_is_one_line(desk, words):
    given = [word.replace("{here}", str(desk.here)) for word in words.split(" ")]
    out = None if words.startswith(("resume", "-m", "config=smoke resume")) else "hydra.run.dir=out"
    said = desk.refused(*given, out=out)
    assert re.search(WORDS[words], said), said
    assert "canary" not in said


PAIRS = [f"{key}={value}" for key, values in NUMBERS.items() for value in values]
PAIRS += [text.format(value) for text, values in MORE.items() for value in values]


@pytest.mark.parametrize("words", mostly_nightly(PAIRS, 5))
def test_a_number_that_means_nothing_is_one_line(desk, words):
    said = desk.refused(*([] if words.startswith("config=") else [SMOKE]), *words.split(" "))
    key = words.split(" ")[-1].partition("=")[0].removeprefix("transforms.stages.")
    assert key.split(".")[-1] in said, said
