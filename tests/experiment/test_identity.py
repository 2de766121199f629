"""The identity of a run: it holds everything that the numbers depend on, and nothing else."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from attacks.encoders.engine import Decision
from attacks.experiment.identity import identity_digest, refuse_other, refuse_other_command, run_identity, sources
from attacks.run import compose
from attacks.runtime.distributed import World
from attacks.study.assembly import build
from tests.helpers.wrong import refused

ROOT = Path(__file__).resolve().parents[2]
BASE = ["data.count=2", "data.size=32"]


def identity_of(*overrides, **parts):
    run = compose("smoke", [*BASE, *overrides])
    defaults = {"decision": Decision(), "world": World(), "versions": {"torch": "1"}} | parts
    return run_identity(run, build(run), **defaults)


@pytest.fixture(scope="module")
def base():
    return identity_of()


CHANGES = {
    "seed=1": ["seed"],
    "attack.steps=7": ["attack.steps"],
    "perturbation.eps=1/255": ["perturbation.eps"],
    "evaluate.views=9": ["evaluate.views"],
    "data.count=3": [
        "data.count",
        *(f"the pictures{suffix}" for suffix in ("' names", "' clusters", "")),
        "what is right",
    ],
    "data.size=33": ["data.size", "the pictures' names", "the pictures", "the gallery", "what is right"],
    "encoder.weights={file}": ["encoder.weights", "the file of encoder.weights"],
}


@pytest.mark.slow
@pytest.mark.parametrize("word", CHANGES)
def test_settings_that_change_numbers_change_the_identity_by_name(base, word):
    from attacks.encoders.loading import POCKET_WEIGHTS

    other = identity_of(word.format(file=POCKET_WEIGHTS))
    assert [name for name in {**base, **other} if base.get(name) != other.get(name)] == CHANGES[word]
    assert identity_digest(base) != identity_digest(other)
    refused(CHANGES[word][0], refuse_other, {"identity": base}, other, Path("run"))


IN_ONE_OF = "the order of transforms.stages.one_of.stages"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "other", "message"),
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
def test_other_stages_or_another_order_of_them_make_another_run(stages, other, message):
    run = compose("smoke", BASE)
    old_run, new_run = (
        replace(run, transforms=replace(run.transforms, stages=variant)) for variant in (stages, other)
    )
    manifest = {"config": json.loads(json.dumps(asdict(old_run)))}
    refuse_other_command(manifest, old_run, Path("run"))
    refused(message, refuse_other_command, manifest, new_run, Path("run"))


@pytest.mark.slow
def test_another_surrogate_under_the_same_name_is_refused():
    run = compose("smoke", [*BASE, "optimiser=nes", "optimiser.surrogate=pocket", "attack.views=20"])
    parts, digests = build(run), []
    for shift in (0.0, 1.0):
        with torch.no_grad():
            next(parts.optimiser.surrogate.parameters()).add_(shift)
        digests.append(run_identity(run, parts, Decision(), World(), {}))
    with pytest.raises(ValueError, match="another run: the surrogate's weights was"):
        refuse_other({"identity": digests[0]}, digests[1], Path("run"))


@pytest.mark.slow
def test_settings_that_change_no_number_leave_the_identity_unchanged(base):
    assert identity_of("tracker=tensorboard", "checkpoint.steps=3") == base


@pytest.mark.slow
def test_decision_processes_and_versions_change_the_key(base):
    variants = [
        identity_of(decision=Decision(chunk=3)),
        identity_of(world=World(0, 2)),
        identity_of(versions={"torch": "2"}),
    ]
    assert len({identity_digest(variant) for variant in (base, *variants)}) == 4
    refuse_other({"identity": base}, dict(base), Path("run"))


@pytest.mark.slow
def test_every_source_file_is_part_of_the_identity(tmp_path):
    for package in ("attacks", "transforms"):
        shutil.copytree(ROOT / package, tmp_path / package)
    digest = sources.__wrapped__  # without its cache
    for name in ("attacks/solvers/loop.py", "attacks/runtime/values.py", "transforms/sampling/warp.py"):
        file, content = tmp_path / name, (tmp_path / name).read_bytes()
        assert digest(tmp_path) == sources()
        file.write_bytes(content + b"\n")
        assert digest(tmp_path) != sources()
        file.write_bytes(content)
