"""The message for a mistyped word, a preset that is refused, and a value out of range: one line, with the fix."""

import re
from dataclasses import asdict
from functools import cache

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from attacks.experiment.job import job
from attacks.run import compose
from attacks.schema import presets
from attacks.schema.groups import CHOICES
from attacks.schema.options import options, refuse_out_of_range
from attacks.schema.run import OF_THE_RUN
from attacks.schema.suggestions import keys, suggestion
from attacks.schema.validate import validate
from tests.helpers.sampling import mostly_slow
from tests.helpers.wrong import refused as refusal
from tests.schema.test_fuzz_configs import no_side_effects, warm

#: Argument -> suggestion.
SUGGESTIONS = {
    "attack=pgd": "optimiser=pgd",
    "encoder=resnet50": "encoder=torchvision encoder.model=resnet50",
    "encoder=ViT-B-32": "encoder=open_clip encoder.model=ViT-B-32",
    "optimizer.momentm=0.5": "optimiser.momentum=0.5",
    "optimiser.lr=2": "optimiser=sgd optimiser.lr=2",
    "config=quikstart": "config=quickstart",
    "evaluate.view=3": "evaluate.views=3",
    "epsilon=8/255": "perturbation.eps=8/255",
    "encoder=dinov2": "encoder=transformers encoder.model=facebook/dinov2-small",
    "objective=untargeted": "objective=away",
}


@pytest.mark.parametrize("word", SUGGESTIONS)
def test_mistyped_key_or_choice_gets_the_right_suggestion(word):
    assert suggestion(word) == SUGGESTIONS[word]


def test_correct_or_unrecognisable_arguments_get_no_suggestion():
    for word in ("attack.steps=3", "seed", "optimiser=pgd", "nonsense.x=3", "hydra.run.dir=x", "objective=xyzzy"):
        assert suggestion(word) is None
    for key, owners in keys().items():
        assert suggestion(key) is None or owners, key


def fails(message, action, *arguments):
    """As `refusal`, and nothing else happens."""
    warm()
    with no_side_effects():
        refusal(message, action, *arguments)


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
BOMB += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
#: The text of a preset that is refused before Hydra sees it -> a part of the message.
TEXTS = {
    "encoder: {_target_: os.system, command: 'touch mark'}\n": "key `_target_` is refused",
    "evaluate: {maps: [{_target_: os.system}]}\n": "key `_target_` is refused",
    "data: {'()': logging.FileHandler, filename: mark}\n": "key `..` is refused",
    "encoder: !!python/object/apply:os.system ['touch mark']\n": "tags",
    "encoder: !include /etc/passwd\n": "tags",
    BOMB: "aliases",
    f"a: {'[' * 2000}{']' * 2000}\n": "not valid YAML",
    f"a: {'{a: ' * 2000}1{'}' * 2000}\n": "YAML",
    f"a: {'x' * 2**18}\n": "larger than 256 KiB",
    "seed: 1\nseed: 2\n": "duplicate key",
    "<<: {seed: 1}\nseed: 2\n": "duplicate key or merge",
    b"seed: \xff\xfe\n": "not valid YAML",
    "seed: 1\n".encode("utf-16"): "not valid YAML",
    "seed: 1\n---\nseed: 2\n": "not valid YAML",
    "": "must be a mapping",
    "- 1\n": "must be a mapping",
    "seed: ${oc.env:HOME}\n": "does not read the environment",
    'a: "${\\toc.env:HOME}"\n': "does not read the environment",
    "hydra: {run: {dir: ../elsewhere}}\n": "`hydra` is refused",
    "defaults: [{override /hydra/launcher: joblib}]\n": "default .* is refused; set it on the command line",
    "# @package hydra.launcher\nsetup: [touch mark]\n": "`@package` in hydra",
    "# x\u2028# @package hydra.job_logging\na: 1\n": "`@package` in hydra",
    "defaults: [../../../etc/passwd]\n": "must name a choice",
    "defaults: ['${config}/job_logging/y']\n": "must name a choice",
    "defaults: 5\n": "`defaults` must be a list",
    "tracker: {uri: 'http://a:b@host'}\n": "password",
    "attack: fast\n": "override /attack: NAME",
}
TRACKER = "defaults: [/config/smoke, {override /tracker: mlflow}, _self_]\n"
HTTP = "defaults: [{override /encoder: http}]\nencoder: {model: 'http://h/p', key: VIEWPROOF_K}\n"
#: The same, of one that Hydra composes.
COMPOSED_TEXTS = {
    "seed: ${evaluate.views}\nevaluate: {views: '${seed}'}\n": "seed",
    "seed: ${nothing.there}\n": "nothing",
    "'${oc.env:HOME}': 1\n": "not in 'Run'",
    "overwrite: true\n": "`overwrite=true` removes an earlier run, so a preset may not",
    "workers: 3\n": "`workers=3` starts processes",
    "shard: 0/2\n": "`shard=0/2` leaves pictures",
    HTTP: "sends pictures",
    "defaults: [/objective/verification@_here_, mine]\nthreshold: 0.5\n": "lead back to themselves",
    "defaults: [/engine@hydra.launcher: fixed]\n": "refused",
    "defaults: [{override /encoder: nowhere}]\n": "nowhere",
    "attack: {stepz: 3}\n": "stepz",
    "defaults: [{override /encoder: torchscript}]\nencoder: {model: x.pt}\n": "runs the program",
    f"{TRACKER}tracker: {{uri: 'http://host'}}\n": "network",
    f"{TRACKER}tracker: {{uri: 'sqlite:////tmp/x'}}\n": "uri",
    "defaults: [{override /data: folder}]\ndata: {path: x, cache: ../mark}\n": "data.cache",
    "attack: {steps: many}\n": "attack.steps",
    "attack: {steps: 1.5}\n": "attack.steps",
    "encoder: null\n": "encoder",
    "evaluate: {one_view: perhaps}\n": "one_view",
}


@pytest.mark.parametrize("text", [*TEXTS, *mostly_slow(COMPOSED_TEXTS, 30)], ids=lambda text: ascii(text[:40]))
def test_a_bad_preset_gives_its_message_without_side_effects(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    if text in TEXTS:
        fails(TEXTS[text], presets.read_preset, "mine.yaml")
    else:
        fails(COMPOSED_TEXTS[text], compose, "mine.yaml")


#: Overrides of config=smoke, or of another preset, that Hydra refuses, or that are refused after it -> the message.
OVERRIDES = {
    "attack.steps=four": "`attack.steps` must be a whole number; got four$",
    "attack.steps=[1]": r"`attack.steps` must be a whole number; got \[1\]$",
    "transforms.deterministic=maybe": "`transforms.deterministic` must be true or false; got maybe$",
    "attack=sweet": "`attack=sweet` is unknown: attack is single, suite, radius$",
    "transforms.stages.cutout.size=[0.2,0.4]": r"is added with a plus: \+transforms\.stages\.cutout",
    "transforms.stages.affine.shear=3": r"is added with a plus: \+transforms\.stages\.affine\.shear",
    "+whatever=1": "whatever.*known here",
    "++attack.stepz=3": "stepz",
    "++seed={a:1}": "seed",
    "perturbation=patch": "`perturbation=patch` has no key eps, which .* sets: begin with config=patch",
    "config=patch_quickstart objective=away": "has no key target, which .*: begin with another preset",
    "tracker=mlflow tracker.uri=ftp://a": "tracker.uri",
    "tracker=mlflow tracker.uri=mlruns": "sqlite:///FILE.*store of plain files is deprecated",
    "tracker=wandb tracker.mode=shared": "offline, online",
    "config=quickstart attack.steps=2 attack.gradients=40": "no effect, because attack.steps=2 is set",
    "+encoder={_target_:os.system}": "_target_|encoder",
    "encoder=torchvision encoder.model=x encoder.preprocess.size={a:{_target_:os.system}}": "_target_",
    "encoder=torchscript": "`encoder.model` has no value",
    "~attack": "attack",
    "~attack.steps": "attack.steps",
    "~seedling": "seedling",
    "hydra.job_logging.handlers.file.filename=x.log": "`hydra.job_logging.*refused",
    "hydra.launcher={_target_:os.system}": "`hydra.launcher` is refused",
    "hydra.launcher.x={_target_:os.system}": "`hydra.launcher.x` is refused",
    "hydra/launcher={_target_:os.system}": "`hydra/launcher` takes one choice",
    "attack=[single,suite]": "`attack` takes one choice",
}


@pytest.mark.parametrize("words", mostly_slow(OVERRIDES, 30))
def test_a_wrong_override_gives_its_message(words):
    preset, *arguments = words.split() if words.startswith("config=") else ["config=smoke", *words.split()]
    fails(OVERRIDES[words], compose, preset.removeprefix("config="), arguments)


@cache
def whole(preset):
    return OmegaConf.create(asdict(compose(preset)))


def changed_config(words):
    """The configuration of config=smoke, or of the preset that the first word names, with other values."""
    node, parser = whole("smoke").copy(), OverridesParser.create()
    for word in words.split(" "):
        key, _, value = word.partition("=")
        if key == "config":
            node = whole(value).copy()
        elif key in CHOICES:
            node[key] = OmegaConf.structured(CHOICES[key][value])
        else:
            OmegaConf.update(node, key, parser.parse_override(word).value(), force_add=True)
    return node


def test_a_number_beyond_the_declared_ends_is_refused_with_its_key():
    schemas = [(f"{group}.", schema) for group, choices in CHOICES.items() for schema in choices.values()]
    schemas += OF_THE_RUN.items()
    items = [(prefix, schema, item) for prefix, schema in schemas for item in options(schema) if item.low is not None]
    for prefix, schema, item in items:
        for value, end in ((item.low - 1, "at least"), (item.high + 1, "at most")):
            node = schema()
            setattr(node, item.key, value)
            fails(f"^`{prefix}{item.key}` must be {end} .*; got", refuse_out_of_range, node, prefix)
    assert len(items) > 20


#: Key -> values that no part takes: the message names the key.
NUMBERS = {
    "data.count": (0, -1),
    "attack.steps": (0, -1, "nan", "inf", "1e3", "abc", 10**30),
    "attack.views": (0, -1, 10**8),
    "attack.stop": ("nan", "inf", "-inf"),
    "perturbation.eps": (0, -1, "nan", "inf", "1/0", "abc", "8/255/3"),
    "optimiser.rel_step_size": (0, -1, "nan", "inf", 1e30),
    "perturbation.smooth": (0, "nan", 1e9),
    "evaluate.views": (0, 1, -5, 10**8),
    "evaluate.refine": ("half",),
    "evaluate.wide": (0, "nan", "inf", -2),
    "data.size": (7, 10**9),
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
    "risk=cvar risk.alpha": (0, -1, 2, "nan"),
    "penalty=tv penalty.weight": (-1, "nan", "inf"),
    "config=patch perturbation.size": ("[0,4]", "[-1,4]", "[1000000,1000000]", "5"),
    "config=patch perturbation.quad": ("[[0,0],[0,0],[0,0],[0,0]]", "[[nan,0],[1,0],[1,1],[0,1]]", "[1]"),
    "config=patch perturbation.width_mm": (0, -1, "nan", "inf"),
}
#: Choices and values that do not fit together -> the message.
COMBINATIONS = {
    "optimiser=square optimiser.p_init=2": r"`optimiser.p_init` must lie in \(0, 1\]",
    "optimiser.schedule=steps": "schedule.*cosine",
    "optimiser=pgd optimiser.momentum=2": r"momentum.*\[0, 1\)",
    "perturbation=l0 perturbation.eps=2.5": "whole number of pixels",
    "perturbation.mask=nowhere.png": "there is none at 'nowhere.png'",
    "transforms.stages.affine.turn=3": "affine.turn.*degrees",
    "transforms.stages.swirl={}": "swirl.*affine",
    "draws.name=halton": "draws.name.*sobol",
    "data.size=4000": "`data.size` must be at most 1411",
    "data=folder data.path=. data.size=9000": "`data.size` must be at most 8,192",
    "data=scenes data.path=bundled": "`data=scenes` says where a patch lies",
    "config=patch_universal data.path=none.csv": "`none.csv` is no file",
    "config=patch_universal perturbation.place.scale=[0.3,0.5]": "the scenes have places for it",
    "attack.adversary=1": "`attack.adversary` chooses the views of a step, 2, among",
    "attack.adversary=8 optimiser=square": "needs gradients of new views; optimiser=square has none",
    "attack.adversary=8 risk=cvar": "needs risk=mean",
    "attack=radius perturbation.shared=true": "of a radius of its own; got shared=true",
    "attack=radius optimiser=square": "`attack=radius` goes on by gradients; got optimiser=square",
    "config=patch optimiser=label_only": "`optimiser=label_only` needs a ball round each picture",
    "attack.stop=2": "`attack.stop` is a loss of objective=away, between -1 and 1",
    "attack.stop=0.3 objective=infonce": "of objective=infonce, between -inf and 0",
    "attack.views=many": "`attack.views` must be auto or a whole number, .*; got many",
    "attack.steps=null attack.gradients=1": "`attack.gradients` must suffice for a step of 2 views",
    "show=everything": "`show`",
    "evaluate.primary=recall": "`evaluate.primary` must be success or cosine; got recall",
    "engine.reuse=nowhere": "`engine.reuse` must be a run directory",
    "engine.chunk=many": "`engine.chunk`.*at least 1",
    "engine.precision=float16": "`engine.precision`.*float32, tf32, bfloat16.*got 'float16'",
    "engine.device=meta": "`engine.device` must be .* that computes; got 'meta'",
}
#: The same, of runs that are refused only when their directory has been begun.
LATE = {
    "objective.metric=l7": "`objective.metric` must be one of cosine, l2",
    "objective=layers objective.layers=[stages.9]": "`objective.layers`: the encoder has no 'stages.9'",
    "objective=layers objective.layers=[head:max]": "`objective.layers`: the pool of head must be one of",
    "objective=layers objective.weights=[1]": "`objective.weights` must be one number for each of 2",
    "objective=layers encoder=phash": "it has no named layers, only 'output'",
    "attack=suite attack.nearest=9999": "`attack.nearest` must lie between 0 and",
}
VALUES = {f"{key}={value}": key.rpartition(".")[2] for key, values in NUMBERS.items() for value in values}
VALUES |= COMBINATIONS | LATE


@pytest.mark.parametrize("words", mostly_slow(VALUES, 80))
def test_a_value_that_no_part_takes_gives_its_message(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, OSError)) as error:
        job(validate(changed_config(words)), tmp_path / "out", "smoke", [])
    text = str(error.value)
    assert re.search(VALUES[words], text) and text.isprintable(), text
    assert words in LATE or {path.name for path in tmp_path.rglob("*")} <= {"out", ".lock"}
