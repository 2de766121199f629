"""The identity of a run: it holds everything that the numbers depend on, and nothing else."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from attacks.encoders.engine import Decision
from attacks.experiment.identity import identity, key_of, refuse_other, refuse_other_command, sources
from attacks.run import compose
from attacks.runtime.distributed import World
from attacks.study.assembly import build

ROOT = Path(__file__).resolve().parents[2]
BASE = ["data.count=2", "data.size=32"]


def named(*overrides, **parts):
    run = compose("smoke", [*BASE, *overrides])
    given = {"decision": Decision(), "world": World(), "versions": {"torch": "1"}} | parts
    return identity(run, build(run), **given)


@pytest.fixture(scope="module")
def base():
    return named()


OTHERS = {
    "seed=1": ["seed"],
    "attack.steps=7": ["attack.steps"],
    "perturbation.eps=1/255": ["perturbation.eps"],
    "evaluate.views=9": ["evaluate.views"],
    "data.count=3": [
        "data.count",
        *(f"the pictures{what}" for what in ("' names", "' clusters", "")),
        "what is right",
    ],
    "encoder.weights={file}": ["encoder.weights", "the file of encoder.weights"],
}


@pytest.mark.slow
@pytest.mark.parametrize("word", OTHERS)
def test_settings_that_change_numbers_change_the_identity_by_name(base, word):
    from attacks.encoders.loading import POCKET_WEIGHTS

    other = named(word.format(file=POCKET_WEIGHTS))
    assert [name for name in {**base, **other} if base.get(name) != other.get(name)] == OTHERS[word]
    assert key_of(base) != key_of(other)
    with pytest.raises(ValueError, match=OTHERS[word][0]) as caught:
        refuse_other({"identity": base}, other, Path("run"))
    assert "\n" not in str(caught.value)


IN_ONE_OF = "the order of transforms.stages.one_of.stages"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "other", "where"),
    [
        (
            {"jpeg": {"quality": 20}, "hue": {}},
            {"hue": {}, "jpeg": {"quality": 20}},
            "the order of transforms.stages",
        ),
        ({"hue": {}}, {"affine": {}}, "the order of transforms.stages"),
        ({"hue": {}}, {}, "the order of transforms.stages"),
        (*[{"one_of": {"stages": {name: {} for name in names}}} for names in ("ab", "ba")], IN_ONE_OF),
    ],
)
def test_other_stages_or_another_order_of_them_make_another_run(stages, other, where):
    run = compose("smoke", BASE)
    before, now = (replace(run, transforms=replace(run.transforms, stages=each)) for each in (stages, other))
    manifest = {"config": json.loads(json.dumps(asdict(before)))}
    refuse_other_command(manifest, before, Path("run"))
    with pytest.raises(ValueError, match=where):
        refuse_other_command(manifest, now, Path("run"))


@pytest.mark.slow
def test_another_surrogate_under_the_same_name_is_refused():
    run = compose("smoke", [*BASE, "optimiser=nes", "optimiser.surrogate=pocket", "attack.views=20"])
    parts, digests = build(run), []
    for shift in (0.0, 1.0):
        with torch.no_grad():
            next(parts.optimiser.surrogate.parameters()).add_(shift)
        digests.append(identity(run, parts, Decision(), World(), {}))
    with pytest.raises(ValueError, match="another run: the surrogate's weights was"):
        refuse_other({"identity": digests[0]}, digests[1], Path("run"))


@pytest.mark.slow
def test_settings_that_change_no_number_leave_the_identity_unchanged(base):
    assert named("tracker=tensorboard", "checkpoint.steps=3") == base


@pytest.mark.slow
def test_decision_processes_and_versions_change_the_key(base):
    others = [named(decision=Decision(chunk=3)), named(world=World(0, 2)), named(versions={"torch": "2"})]
    assert len({key_of(each) for each in (base, *others)}) == 4
    refuse_other({"identity": base}, dict(base), Path("run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["attacks/solvers/loop.py", "attacks/runtime/values.py", "transforms/sampling/warp.py"]
)
def test_every_source_file_is_part_of_the_identity(file, tmp_path):
    for copy in ("same", "edited"):
        for package in ("attacks", "transforms"):
            shutil.copytree(ROOT / package, tmp_path / copy / package)
    edited = tmp_path / "edited" / file
    edited.write_bytes(edited.read_bytes() + b"\n")
    assert sources(tmp_path / "same") == sources()
    assert sources(tmp_path / "edited") != sources()
