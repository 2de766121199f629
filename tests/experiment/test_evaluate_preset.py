"""config=evaluate combines with any perturbation and any views."""

import pytest

from attacks.evaluation.response import SlicePlan, slice_axes
from attacks.experiment.configured_slices import configured_slices, wide_of
from attacks.run import compose
from attacks.study.pipeline import pipeline
from tests.helpers.sampled import mostly_slow


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
    maps, curves = configured_slices(run, views)
    assert [name.partition(" (")[0] for name in curves] == names
    assert maps == ([curves] if len(curves) > 1 else [])
    axes = slice_axes(SlicePlan(maps, curves, views, wide_of(views, run.evaluate.wide)))
    assert [len(each) for each in axes] == [2] * len(maps) + [1] * len(curves)


def test_named_maps_and_curves_are_unchanged():
    run = compose("evaluate", ["evaluate.maps=[[angle,shear],auto]", "evaluate.curves=[bright]"])
    maps, curves = configured_slices(run, pipeline(run.transforms))
    assert (maps[0], len(maps), curves) == (["angle", "shear"], 2, ["bright"])
