"""Every choice of every group composes, has a typed schema, and agrees with the code."""

import ast
import inspect
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from attacks.encoders import Preprocess, with_preprocess
from attacks.run import CONFIGS, register
from attacks.schema import validate as schema
from attacks.schema.encoder import BLACK_BOXES, GRADIENT_FREE
from attacks.schema.groups import CHOICES, FILES, OPEN
from attacks.schema.suggestions import choices
from attacks.study import pipeline as pipelines
from transforms import Downscale

GROUPS = choices()
ALL_CHOICES = [(group, name) for group, names in GROUPS.items() for name in names if group != "config"]


def composed(*overrides):
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        return compose("run", overrides=list(overrides))


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), ALL_CHOICES)
def test_every_choice_is_typed_by_its_schema(group, name):
    path = ["data.path=x"] if name == "folder" else []
    preset = "patch" if name == "patch" else "smoke"  # smoke sets an eps; a patch has none
    node = composed(f"config={preset}", f"{group}={name}", *path)[group]
    assert node.name == name
    expected = OPEN.get(group) or CHOICES[group][name]
    assert OmegaConf.get_type(node) is expected


def test_every_choice_of_files_is_a_file():
    for group in set(FILES) - set(OPEN):
        assert sorted(path.stem for path in (CONFIGS / group).glob("*.yaml")) == sorted(CHOICES[group])


@pytest.mark.parametrize("name", sorted(CHOICES["encoder"]))
def test_the_default_optimiser_needs_no_gradient_where_an_encoder_has_none(name):
    run = composed("config=quickstart", f"encoder={name}")
    assert (run.optimiser.name in GRADIENT_FREE) == (name in BLACK_BOXES)
    if name in ("pocket", BLACK_BOXES[0]):
        assert composed("config=quickstart", f"encoder={name}", "optimiser=pgd").optimiser.name == "pgd"


def test_defaults_follow_the_estimator_study():
    run = schema.validate(composed("config=patch"))
    assert run.attack.views == "auto" and run.attack.steps is None and run.attack.gradients >= 800
    assert (run.draws.name, run.optimiser.name, run.optimiser.schedule) == ("sobol", "wiener", "cosine")


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("0.03", 0.03), (4, 4.0), ("1e-2", 0.01)])
def test_eps_may_be_a_fraction_or_a_number(text, value):
    assert schema.fraction(text, "eps") == value


#: Calls that can run code named in a file; those of Hydra by their names.
HYDRA = ("instantiate", "get_method", "get_class")
RUNS_CODE = ("eval", "exec", "compile", "pickle.load", "pickle.loads", "yaml.load", *HYDRA)


def _calls(path):
    """The calls in a source file: their names, and their constant keywords."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            options = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            yield ast.unparse(node.func), options


def test_no_source_runs_code_named_by_a_file():
    for path in Path(inspect.getfile(schema)).parent.rglob("*.py"):
        for name, options in _calls(path):
            assert name not in RUNS_CODE and not name.endswith((".instantiate", ".unsafe_load")), (path, name)
            assert name != "torch.load" or options.get("weights_only") is True, path
            for key, wrong in (("trust_remote_code", True), ("weights_only", False), ("allow_pickle", True)):
                assert options.get(key) is not wrong, (path, name, key)


#: Preset -> the sizes of its `Downscale` for an encoder of 96 pixels, and of 224.
SIZES = {
    "camera": [((48, 96), None), ((112, 224), None)],
    "web": [((64, 128), None), ((149, 299), None)],
    "resizers": [((91, 101), 96), ((213, 235), 224)],
}


@pytest.mark.parametrize("name", GROUPS["transforms"])
def test_sizes_of_the_views_are_shares_of_the_encoders_input(name):
    node = schema.validate(composed("config=smoke", f"transforms={name}")).transforms
    for i, side in enumerate((96, 224)):
        outer = pipelines.pipeline(node, side).stages
        all_stages = [*outer, *(stage for stage in outer for stage in getattr(stage, "stages", ()))]
        sizes = {(stage.size, stage.then_size) for stage in all_stages if isinstance(stage, Downscale)}
        assert sizes == ({SIZES[name][i]} if name in SIZES else set())


@pytest.mark.parametrize(
    ("preprocess", "side"),
    [({"size": 256, "fit": "cover", "crop": (224, 240)}, 224), ({"size": None}, 150), (None, 150)],
)
def test_the_side_is_that_of_the_encoders_input_or_of_the_pictures(preprocess, side):
    network = torch.nn.Flatten()
    if preprocess is not None:
        options = {"kernel": "pil_bilinear", "mean": (0.5,) * 3, "std": (0.5,) * 3} | preprocess
        network = with_preprocess(network, Preprocess(**options))
    assert pipelines.input_side(network, (200, 150)) == side


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS["transforms"])
@pytest.mark.parametrize("size", [(96, 96), (150, 110)], ids=str)
def test_every_preset_makes_views_of_pictures_of_any_size_with_a_gradient(name, size):
    camera = pipelines.preset(name)
    images = torch.rand(2, 3, *size).requires_grad_()
    views = camera(images, torch.rand(8, camera.dims))
    assert views.shape[:2] == (8, 3)
    assert views.isfinite().all() and views.min() >= 0 and views.max() <= 1
    (views * torch.randn_like(views)).sum().backward()
    assert images.grad.isfinite().all()
    assert (images.grad.flatten(1).norm(dim=1) > 1e-3).all()
