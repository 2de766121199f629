"""From a configuration to the encoder, and its description in a run."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from safetensors.torch import save_file

from attacks.encoders.description import description_rows, identity
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.encoders.preprocess import Preprocess
from attacks.experiment.results import encoder_line
from attacks.run import CONFIGS, register
from attacks.schema import validate as schema
from tests.helpers.subjects import encoder_of

CPU = torch.device("cpu")
RANDOM = ("encoder=torchvision", "encoder.model=squeezenet1_1", "encoder.weights=random")


def compose_run(*overrides):
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        return schema.validate(compose("run", overrides=["config=smoke", *overrides]))


def test_the_command_line_overrides_parts_of_a_presets_preprocessing(tmp_path, monkeypatch):
    text = "# @package _global_\ndefaults: [/config/smoke, {override /encoder: torchvision}, _self_]\n"
    text += "encoder: {model: resnet18, weights: random, preprocess: {kernel: cv2_area, size: 64, crop: [64, 64]}}\n"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "preprocessed.yaml").write_text(text)
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        path = [f"hydra.searchpath=[{tmp_path}]", "config=preprocessed", "encoder.preprocess.size=70"]
        run = schema.validate(compose("run", overrides=path))
    assert run.encoder.preprocess == {"kernel": "cv2_area", "size": 70, "crop": [64, 64]}


@pytest.mark.parametrize("override", ["encoder.preprocess=3", "encoder.preprocess=null", "encoder.modell=x"])
def test_other_keys_of_an_encoder_keep_their_types(override):
    with pytest.raises(ConfigCompositionException):
        compose_run(*RANDOM, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder.preprocess.kernle=cv2_area", r"unknown key `encoder\.preprocess\.kernle`: known here are size"),
        ("encoder.preprocess.size=big", r"`encoder\.preprocess\.size` must be .*got 'big'"),
        ("encoder.preprocess.std=[0,1,1]", r"`encoder\.preprocess\.std` must be positive"),
    ],
)
def test_a_wrong_key_or_value_gives_a_one_line_error(override, message):
    with pytest.raises(ValueError, match=message) as failure:
        encoder_of(compose_run(*RANDOM, override).encoder, CPU)
    assert "\n" not in str(failure.value)


def test_the_manifest_holds_everything_that_defines_an_encoder():
    node = compose_run(*RANDOM, "encoder.preprocess.kernel=cv2_area").encoder
    encoder = encoder_of(node, CPU)
    output = identity(node, encoder)
    assert (output["name"], output["model"], output["weights"]) == ("torchvision", "squeezenet1_1", "random")
    assert output["sha256"] is None and output["preprocess"]["kernel"] == "cv2_area"
    # The printed description reproduces the same encoder.
    assert output["fingerprint"][:12] in str(encoder)
    assert Preprocess(**json.loads(json.dumps(output["preprocess"]))) == encoder.preprocess
    assert identity(node, encoder_of(node, CPU)) == output


@pytest.mark.slow
def test_weights_are_identified_by_file_hash_and_tensor_fingerprint(tmp_path):
    encoder = encoder_of(compose_run(*RANDOM).encoder, CPU)
    descriptions = []
    for name in ("a.safetensors", "b.pt"):
        state = encoder.network.state_dict()
        save_file(state, tmp_path / name) if name.startswith("a") else torch.save(state, tmp_path / name)
        node = compose_run(*RANDOM[:2], f"encoder.weights={tmp_path / name}").encoder
        descriptions.append(identity(node, encoder_of(node, CPU)))
        assert descriptions[-1]["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert descriptions[0]["fingerprint"] == descriptions[1]["fingerprint"] == identity(node, encoder)["fingerprint"]


def test_the_encoder_that_ships_has_its_hash():
    node = compose_run().encoder
    output = identity(node, encoder_of(node, CPU))
    assert output["sha256"] == hashlib.sha256(Path(POCKET_WEIGHTS).read_bytes()).hexdigest()
    assert len(output["fingerprint"]) == 64


def rows(*overrides):
    run = compose_run(*overrides)
    return description_rows(identity(run.encoder, encoder_of(run.encoder, CPU, run.defence)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "override",
    [
        "encoder.model=squeezenet1_0",
        "encoder.preprocess.kernel=cv2_area",
        "encoder.preprocess.crop=[64,64]",
        "encoder.preprocess.mean=[0.5,0.5,0.5]",
        "encoder.preprocess.bgr=true",
        "encoder.preprocess.eight_bit=true",
        "encoder.features=[features.3]",
        "encoder.features=[features.3:mean]",
        "defence=jpeg",
    ],
)
def test_the_report_of_an_encoder_changes_with_its_settings(override):
    plain = rows(*RANDOM)
    assert plain[:2] == [("encoder", "torchvision:squeezenet1_1"), plain[1]] and plain[1][1].startswith("random, ")
    assert plain[-1] == ("defence", "none")
    assert rows(*RANDOM, override) != plain


@pytest.mark.slow
def test_a_report_states_whether_a_range_of_a_defence_is_sampled():
    assert rows("defence=blur")[-1] == ("at the middle", "gaussianblur sigma (px)")
    label, words = rows("defence=blur", "encoder.stochastic=true")[-1]
    assert label == "drawn" and "gaussianblur sigma (px)" in words
    assert rows("defence=jpeg")[-1][0] == "defence"  # it has no range


def test_the_terminal_describes_the_encoder_in_one_line():
    run = compose_run("encoder.features=[stages.8]", "defence=blur")
    output = encoder_line({"encoder": identity(run.encoder, encoder_of(run.encoder, CPU, run.defence))})
    assert re.fullmatch(r"encoder: pocket; weights .*; features stages\.8; defence Gauss.*; at the middle .*", output)
    run = compose_run(*RANDOM)
    output = encoder_line({"encoder": identity(run.encoder, encoder_of(run.encoder, CPU))})
    assert re.fullmatch("encoder: torchvision:squeezenet1_1; weights random, [^;]*; defence none", output)


def test_an_encoder_without_weights_has_no_weights_in_the_report():
    output = [("encoder", "phash"), ("weights", "none"), ("defence", "none")]
    assert rows("encoder=phash", "objective=bits") == output
