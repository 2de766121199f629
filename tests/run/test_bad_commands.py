"""Wrong command lines: an error of one line, exit code 1, and no other effect."""

import re
import sys

import pytest

from attacks.run import cli
from tests.helpers.wrong import desk as desk

SMOKE = "config=smoke"
#: Command line -> a pattern of its error message. {here} is the working directory.
WORDS = {
    "": "config.*quickstart",
    "config=nowhere": "config/nowhere.*quickstart",
    "config=./nowhere.yaml": "does not exist",
    "config=../../etc/passwd": "must name a choice",
    "config=.": "Could not find|must",
    "config=": "config",
    "config=smoke attack.stepz=3": r"did you mean attack.steps=3\?",
    "config=smoke +attack.stepz=3": "attack.stepz.*steps, views",
    "config=smoke ++attack.stepz=3": "stepz",
    "config=smoke +whatever=1": "whatever.*known here",
    "config=smoke optimiser=pgd ++optimiser.momentun=1": "optimiser.momentun.*momentum",
    "config=smoke optimiser=pgd optimiser.momentum=2": r"momentum.*\[0, 1\)",
    "config=smoke optimiser.schedule=steps": "schedule.*cosine",
    "config=smoke optimiser=square optimiser.p_init=2": r"`optimiser.p_init` must lie in \(0, 1\]",
    "config=smoke perturbation=l3": "perturbation/l3.*linf",
    "config=smoke perturbation=l0 perturbation.eps=2.5": "whole number of pixels",
    "config=smoke perturbation=patch": "`perturbation=patch` has no key eps, which .* sets: begin with config=patch",
    "config=patch_quickstart objective=away": "has no key target, which .*: begin with another preset",
    "config=quickstart perturbation=l2 perturbation.eps=": "perturbation.eps.*8/255",
    "config=smoke perturbation.eps": "`perturbation.eps` must be KEY=VALUE, such as perturbation.eps=8/255",
    "config=smoke perturbation.eps=8": r"eps.*did you mean 8/255\?",
    "config=smoke perturbation.eps=inf": r"\(0, 1\], got inf: write 8/255",
    "config=smoke perturbation.eps=eight": "perturbation.eps.*8/255",
    "config=smoke perturbation.mask=nowhere.png": "there is none at 'nowhere.png'",
    "config=smoke +transforms.stages.affine.turn=3": "affine.turn.*degrees",
    "config=smoke +transforms.stages.swirl={}": "swirl.*affine",
    "config=smoke draws.name=halton": "draws.name.*sobol",
    "config=smoke data.photos=[monalisa]": "photos.*astronaut",
    "config=smoke data.size=4000": "`data.size` must be at most 1411",
    "config=smoke data=folder data.path={here} data.size=9000": "`data.size` must be at most 8,192",
    "config=smoke data=folder": "data.path.*data.path=VALUE",
    "config=smoke data=scenes data.path=bundled": "`data=scenes` says where a patch lies",
    "config=patch_universal data.path=none.csv": "`none.csv` is no file",
    "config=patch_universal +perturbation.place.scale=[0.3,0.5]": "the scenes have places for it",
    "config=smoke objective=toward objective.target=nobody": "objective.target.*nobody",
    "config=smoke penalty=lpips": "lpips",
    "config=smoke attack=suite objective=layers": "cannot be combined",
    "config=smoke attack.adversary=1": "`attack.adversary` chooses the views of a step, 2, among",
    "config=smoke attack.adversary=8 optimiser=square": "needs gradients of new views; optimiser=square has none",
    "config=smoke attack.adversary=8 risk=cvar": "needs risk=mean",
    "config=patch attack=radius": "a ball round each picture, of a radius of its own; got patch",
    "config=smoke attack=radius perturbation.shared=true": "of a radius of its own; got shared=true",
    "config=smoke attack=radius optimiser=square": "`attack=radius` goes on by gradients; got optimiser=square",
    "config=patch optimiser=label_only": "`optimiser=label_only` needs a ball round each picture",
    "config=smoke attack.stop=2": "`attack.stop` is a loss of objective=away, between -1 and 1",
    "config=smoke attack.stop=0.3 objective=infonce": "of objective=infonce, between -inf and 0",
    "config=smoke attack.stop=0.3 objective.metric=l2": "between -inf and 0",
    "config=smoke attack.views=many": "`attack.views` must be auto or a whole number, .*; got many",
    "config=smoke attack.gradients=40": "`attack.gradients=40` has no effect, because attack.steps=4 is set: say",
    "config=quickstart attack.steps=2 attack.gradients=40": "no effect, because attack.steps=2 is set",
    "config=smoke attack.steps=null attack.gradients=1": "`attack.gradients` must suffice for a step of 2 views",
    "config=smoke risk=worst_of risk.k=3": "`attack.views` must be a multiple of risk.k = 3",
    "config=smoke ++encoder._target_=os.system": "_target_",
    "config=smoke +encoder={_target_:os.system}": "_target_|encoder",
    "config=smoke encoder=torchvision encoder.model=x encoder.preprocess.size={a:{_target_:os.system}}": "_target_",
    "config=smoke encoder=torchvision encoder.model=x encoder.preprocess._target_=os.system": "_target_",
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
    "config=smoke evaluate.primary=recall": "`evaluate.primary` must be success or cosine; got recall",
    "config=smoke engine.device=toaster": "engine.device",
    "config=smoke engine.reuse={here}": "manifest.json",
    "config=smoke engine.reuse=nowhere": "`engine.reuse` must be a run directory",
    "config=smoke engine.chunk=many": "`engine.chunk`.*at least 1",
    "config=smoke engine.precision=float16": "`engine.precision`.*float32, tf32, mixed, bfloat16.*got 'float16'",
    "config=smoke engine.compile=false": "`engine.compile` is a key of an earlier version; leave it out",
    "config=smoke engine.layout=nhwc": "`engine.layout`.*contiguous, channels_last",
    "config=smoke engine.fold=perhaps": "`engine.fold`.*true or false",
    "--config-path=/etc config=smoke": "refused",
    "--config-name=other": "refused",
    "--config-dir={here}/none config=smoke": "none",
    "--experimental-rerun=x.pickle": "refused",
    "hydra.searchpath=[/etc] config=smoke": "refused",
    "hydra.job_logging.handlers.file.filename=x.log config=smoke": "`hydra.job_logging.*refused",
    "-m config=smoke seed=1,2 hydra.launcher._target_=os.system": "`hydra.launcher._target_` is refused",
    "-m config=smoke seed=1,2 hydra.launcher={_target_:os.system}": "`hydra.launcher` is refused",
    "-m config=smoke seed=1,2 hydra.launcher.x={_target_:os.system}": "`hydra.launcher.x` is refused",
    "-m config=smoke hydra.callbacks.sweep._target_=os.system": "`hydra.callbacks.sweep._target_` is refused",
    "config=smoke -m seed=range(0) hydra.sweep.dir=out": r"`seed=range\(0\)` holds no value",
    "-m config=smoke attack=glob(zz*) hydra.sweep.dir=out": "the sweep has no jobs",
    "-m config=smoke seed=1,2 hydra/launcher={_target_:os.system}": "`hydra/launcher` takes one choice",
    "-m config=smoke seed=1,2 hydra.sweep.dir=/proc/none": "name another run directory, hydra.sweep.dir=PATH",
    "config=smoke data=folder data.path=~/mine": "no ~ is expanded here; write data.path=/.*/mine",
    "config=./a#b.yaml": "`./a#b.yaml` has a sign in its name that Hydra does not read; rename the file",
    "config=smoke data=folder data.path=a#b": "two kinds of quotes: 'data.path=\"a#b\"'",
    "config=smoke hydra.run.dir={file}": "file exists; name another run directory",
    "config=smoke hydra.run.dir={file}/x": "not a directory; name another run directory",
    "config=smoke hydra.run.dir=/sys/kernel": "must be a new directory, or that of a run; /sys/kernel holds other",
    "config=smoke hydra.run.dir=/proc/none": "no such file or directory; name another run directory",
    f"config=smoke hydra.run.dir={'a' * 300}": "file name too long; name another run directory",
    f"config=smoke seed={'1' * 5000}": "`seed` must be a number of at most 4,300 digits; got 5,000",
    "config=smoke engine.device=meta": "`engine.device` must be .* that computes; got 'meta'",
    "-m config=smoke attack.steps=x,y hydra.sweep.dir=out": "steps",
    "resume=": "must be the directory of a run",
    "resume={here}/none": "must be the directory of a run",
    "resume={here}": "manifest.json",
    "resume={here} attack.steps=3": "manifest.json",
    "config=smoke resume={here}": "manifest.json",
}
#: Key -> numbers that are out of range.
NUMBERS = {
    "attack.steps": (0, -1, "nan", "inf", "1e3", "abc", 10**30),
    "attack.views": (0, -1, 10**8),
    "attack.restarts": (0,),
    "attack.stop": ("nan", "inf", "-inf"),
    "perturbation.eps": (0, -1, "nan", "inf", "1/0", "abc", "8/255/3"),
    "optimiser.rel_step_size": (0, -1, "nan", "inf", 1e30),
    "perturbation.smooth": (0, "nan", 1e9),
    "evaluate.views": (0, 1, -5, 10**8),
    "evaluate.refine": (-1, "half"),
    "evaluate.batch": (0, -1),
    "evaluate.wide": (0, "nan", "inf", -2),
    "evaluate.neighbours": (-1, 0),
    "evaluate.left_out": (-1,),
    "data.size": (0, 7, -64, 10**9),
    "data.count": (0, -1, 10**9),
    "seed": ("nan", 1.5, "x"),
    "engine.chunk": (0, -1, "many"),
    "engine.threads": (0, -1, 10**6),
    "transforms.value": ("nan", 2, "grey"),
    "transforms.stages.affine.degrees": ("nan", "inf", "[20,-20]", "x", "[1,2,3]"),
    "transforms.stages.affine.scale": (0, -1, "nan", "[0,1]", "1e30"),
    "transforms.stages.perspective.jitter": (-1, 0.7, 2, "nan"),
    "transforms.stages.downscale.size": (0, -3, "nan", "[96,48]", 10**9),
    "transforms.stages.downscale.kernel": ("none", "bicubic"),
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


@pytest.mark.slow
@pytest.mark.parametrize("command", WORDS)
def test_a_bad_command_gives_a_one_line_error(desk, command):
    (desk.here / "a#b.yaml").write_text("seed: 1\n")
    given = [word.replace("{here}", str(desk.here)).replace("{file}", __file__) for word in command.split()]
    named = "hydra.run.dir" in command or command.startswith(("resume", "-m", "config=smoke resume"))
    out = None if named else "hydra.run.dir=out"
    message = desk.refused(*given, out=out)
    assert re.search(WORDS[command], message), message
    assert "canary" not in message


@pytest.mark.parametrize(
    "given",
    [
        ["config=patch"],
        ["data.count=1", "data.count=2"],
        ["data.count=1", "++data.count=2"],
        ["hydra.run.dir=elsewhere"],
        ["-m", "seed=1,2", "seed=3"],
    ],
)
def test_a_key_that_is_given_twice_is_refused(monkeypatch, capsys, tmp_path, given):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["viewproof", SMOKE, "hydra.run.dir=out", *given])
    with pytest.raises(SystemExit, match="1"):
        cli()
    twice, error = given[-1].lstrip("+").partition("=")[0], capsys.readouterr().err
    assert error.startswith(f"error: `{twice}` is given twice: ") and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


PAIRS = [f"{key}={value}" for key, values in NUMBERS.items() for value in values]
PAIRS += [text.format(value) for text, values in MORE.items() for value in values]


@pytest.mark.slow
@pytest.mark.parametrize("command", PAIRS)
def test_a_number_out_of_range_gives_a_one_line_error(desk, command):
    message = desk.refused(*([] if command.startswith("config=") else [SMOKE]), *command.split(" "))
    key = command.split(" ")[-1].partition("=")[0].removeprefix("transforms.stages.")
    assert key.split(".")[-1] in message, message
