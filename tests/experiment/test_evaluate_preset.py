"""config=evaluate combines with any perturbation and any views."""

from types import SimpleNamespace

import pytest

from attacks.evaluation.response import slice_axes
from attacks.experiment.sections.judged import plan_of
from attacks.run import compose
from attacks.study.pipeline import pipeline
from tests.helpers.sampling import mostly_slow


@pytest.mark.parametrize("perturbation", mostly_slow(["patch", "l0", "l1", "l2"], 2))
def test_the_evaluate_preset_combines_with_any_perturbation(perturbation):
    assert compose("evaluate", [f"perturbation={perturbation}"]).perturbation.name == perturbation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transforms", "names"),
    [
        ("camera", ["affine angle", "affine scale"]),
        ("eot3d", ["viewpoint yaw", "viewpoint distance"]),
        ("print", ["viewpoint yaw", "viewpoint distance"]),
        ("web", ["jpeg quality", "oneof stage"]),
        ("si", ["oneof stage"]),
        ("identity", []),
    ],
)
def test_the_evaluate_preset_draws_maps_of_any_views(transforms, names):
    run = compose("evaluate", [f"transforms={transforms}"])
    views = pipeline(run.transforms)
    plan = plan_of(SimpleNamespace(evaluate=run.evaluate, transforms=views))
    if not names:
        assert plan is None
        return
    maps, curves = plan.maps, plan.curves
    assert [name.partition(" (")[0] for name in curves] == names
    assert maps == ([curves] if len(curves) > 1 else [])
    axes = slice_axes(plan).values()
    assert [len(axis) for axis in axes] == [2] * len(maps) + [1] * len(curves)


def test_named_maps_and_curves_are_unchanged():
    run = compose("evaluate", ["evaluate.maps=[[angle,shear],auto]", "evaluate.curves=[bright]"])
    plan = plan_of(SimpleNamespace(evaluate=run.evaluate, transforms=pipeline(run.transforms)))
    maps, curves = plan.maps, plan.curves
    assert (maps[0], len(maps), curves) == (["angle", "shear"], 2, ["bright"])
