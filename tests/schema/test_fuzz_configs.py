"""The laws of `scripts/fuzz.py configs` on cases that are always the same, and what fuzzing has found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from fuzzing import config_cases, configs
from fuzzing.guard import watched
from fuzzing.target import Broken

from attacks.experiment.build import pipeline as pipelines
from attacks.run import compose
from attacks.schema import presets
from attacks.schema import validate as schema

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


KINDS = {
    "preset": (st.fixed_dictionaries({"preset": config_cases.PRESETS}), 40),
    "whole": (config_cases.WHOLE, 20),
    "words": (st.fixed_dictionaries({"words": config_cases.WORDS}), 8),
    "both": (st.fixed_dictionaries({"words": config_cases.WORDS, "preset": config_cases.PRESETS}), 6),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_hold(kind):
    cases, count = KINDS[kind]
    settings(few, max_examples=count)(given(cases)(configs.check))()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_hold_on_many_cases(kind):
    cases, count = KINDS[kind]
    settings(few, max_examples=20 * count)(given(cases)(configs.check))()


@pytest.mark.parametrize("name", sorted(config_cases.bundled()))
def test_bundled_files_obey_the_laws_as_they_are(name):
    configs.check({"preset": config_cases.bundled()[name]})


def test_a_configuration_is_the_same_when_written_and_read():
    for text in config_cases.composed():
        assert configs._through_a_file(schema.validate(OmegaConf.create(text))) == schema.validate(
            OmegaConf.create(text)
        )


def writes():
    Path("made").write_text("x")


def appends():
    os.close(os.open("made", os.O_CREAT | os.O_RDWR))


def starts():
    subprocess.run(["true"])


def asks():
    import socket

    socket.getaddrinfo("localhost", 80)


def imports():
    sys.modules.pop("this", None)
    import this  # noqa: F401


@pytest.mark.parametrize(
    "deed", [writes, appends, starts, asks, imports, lambda: Path("folder").mkdir(exist_ok=True)]
)
def test_the_guard_notices_what_gets_out(deed):
    import socket  # noqa: F401

    with pytest.raises(Broken), watched():
        deed()
    with watched():
        Path(__file__).read_text()
    deed()  # nobody looks any more


@pytest.mark.parametrize(
    "step",
    [
        lambda *_: {}["key"],
        lambda *_: (_ for _ in ()).throw(ValueError("two\nlines")),
        lambda *_: Path("made").write_text("x"),
        lambda *_: None,  # a run that is another when read again
    ],
)
def test_each_law_is_noticed_where_it_is_broken(step, monkeypatch):
    monkeypatch.setattr(configs, "_through_a_file", step)
    with pytest.raises((Broken, KeyError)):
        configs.check({"whole": config_cases.composed()[0]})


@pytest.mark.parametrize("defaults", ["", "null", "[case]", "[_self_, case]"])
def test_defaults_of_nothing_are_none_and_those_in_a_circle_are_refused(defaults, tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(f"name: x\ndefaults: {defaults}\nstages: {{affine: {{degrees: 5}}}}\n")
    if "case" in defaults:
        with pytest.raises(ValueError, match="names itself in its defaults"):
            pipelines.preset(str(path))
    else:
        assert pipelines.preset(str(path)).stages == tuple(pipelines.stages({"affine": {"degrees": 5}}, "x"))


def test_a_preset_whose_defaults_lead_back_to_it_is_refused_in_a_line(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text("defaults:\n- /objective/verification@_here_\n- case\nthreshold: 0.5\n")
    with pytest.raises(ValueError, match="lead back to themselves"):
        compose(str(path))


@pytest.mark.parametrize("name", [["pgd"], {"a": 1}, 3, True])
def test_a_name_that_is_no_word_is_refused_by_its_key(name):
    whole = OmegaConf.create(config_cases.composed()[0])
    whole.optimiser.name = name
    with pytest.raises(ValueError, match=r"`optimiser\.name` must be one of"):
        schema.validate(whole)


ODD_KEY = "a\nb\u2028\x1b[2J"


@pytest.mark.parametrize(
    "step",
    [
        lambda path: pipelines.stages({ODD_KEY: {}}, "transforms.stages"),
        lambda path: pipelines.stages({"affine": {ODD_KEY: 1}}, "transforms.stages"),
        lambda path: presets.read(path.with_name(f"{ODD_KEY}.yaml")),
        lambda path: [path.write_text('defaults: ["..\\n\\e"]'), presets.read(path)],
        lambda path: schema.validate(OmegaConf.create({"seed": 1, ODD_KEY: 2})),
        lambda path: schema.validate(OmegaConf.create({"seed": "${a:b}" + ODD_KEY})),
        lambda path: schema.validate(OmegaConf.create({"seed": "${nothing}"})),
    ],
)
def test_what_cannot_be_printed_is_written_out_in_a_refusal(step, tmp_path):
    with pytest.raises((ValueError, OSError)) as caught:
        step(tmp_path / "case.yaml")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "word", [*config_cases.FLAGS, "+@_global_=tv", "perturbation=[1,2]", "data=[folder]", "config=[1]"]
)
def test_words_that_hydra_fails_on_are_refused_before(word):
    with pytest.raises(ValueError, match=r"must be KEY=VALUE|takes one choice|Key 'resume' not in"):
        compose("smoke", [word])
