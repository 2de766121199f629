"""From a configuration to the encoder, and what a run says of it."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from safetensors.torch import save_file

from attacks.encoders.description import described, identity
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.encoders.preprocess import Preprocess
from attacks.experiment.build.encoder import subject
from attacks.experiment.results import encoder_line
from attacks.report.warnings import warnings
from attacks.run import CONFIGS, register
from attacks.schema import validate as schema

CPU = torch.device("cpu")
RANDOM = ("encoder=torchvision", "encoder.model=squeezenet1_1", "encoder.weights=random")


def composed(*overrides):
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        return schema.validate(compose("run", overrides=["config=smoke", *overrides]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("encoder.preprocess.kernel=cv2_area", {"kernel": "cv2_area"}),
        ("+encoder.preprocess.kernel=cv2_area", {"kernel": "cv2_area"}),
        ("encoder.preprocess.crop=[64,64]", {"crop": [64, 64]}),
        ("encoder.preprocess={size: null, mean: [0.5, 0.5, 0.5]}", {"size": None, "mean": [0.5] * 3}),
    ],
)
@pytest.mark.parametrize("family", ["torchvision", "transformers", "onnx"])
def test_a_key_of_the_preprocessing_is_given_like_any_other(override, expected, family):
    assert composed(f"encoder={family}", "encoder.model=x", override).encoder.preprocess == expected


def test_a_preset_may_give_it_and_the_command_line_changes_a_part(tmp_path, monkeypatch):
    text = "# @package _global_\ndefaults: [/config/smoke, {override /encoder: torchvision}, _self_]\n"
    text += "encoder: {model: resnet18, weights: random, preprocess: {kernel: cv2_area, size: 64, crop: [64, 64]}}\n"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "preprocessed.yaml").write_text(text)
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        path = [f"hydra.searchpath=[{tmp_path}]", "config=preprocessed", "encoder.preprocess.size=70"]
        run = schema.validate(compose("run", overrides=path))
    assert run.encoder.preprocess == {"kernel": "cv2_area", "size": 70, "crop": [64, 64]}


@pytest.mark.parametrize(
    "override",
    [
        "encoder.preprocess={_target_: os.system}",
        "encoder.preprocess._target_=os.system",
        "encoder.preprocess.size={a: {_target_: os.system}}",
        "encoder.preprocess.mean=[{_target_: os.system}]",
    ],
)
def test_it_may_not_name_code(override):
    with pytest.raises(ValueError, match=r"`_target_` is refused.*does not run code"):
        composed(*RANDOM, override)


@pytest.mark.parametrize("override", ["encoder.preprocess=3", "encoder.preprocess=null", "encoder.modell=x"])
def test_other_keys_of_an_encoder_keep_their_types(override):
    with pytest.raises(ConfigCompositionException):
        composed(*RANDOM, override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("encoder.preprocess.kernle=cv2_area", r"unknown key `encoder\.preprocess\.kernle`: known here are size"),
        ("encoder.preprocess.size=big", r"`encoder\.preprocess\.size` must be .*got 'big'"),
        ("encoder.preprocess.std=[0,1,1]", r"`encoder\.preprocess\.std` must be positive"),
    ],
)
def test_a_wrong_key_or_value_is_one_line(override, message):
    with pytest.raises(ValueError, match=message) as caught:
        subject(composed(*RANDOM, override).encoder, CPU)
    assert "\n" not in str(caught.value)


def test_the_manifest_says_all_that_makes_an_encoder():
    node = composed(*RANDOM, "encoder.preprocess.kernel=cv2_area").encoder
    encoder = subject(node, CPU)
    said = identity(node, encoder)
    assert (said["name"], said["model"], said["weights"]) == ("torchvision", "squeezenet1_1", "random")
    assert said["sha256"] is None and said["preprocess"]["kernel"] == "cv2_area"
    # What is printed, and what makes the same one again.
    assert said["fingerprint"][:12] in str(encoder)
    assert Preprocess(**json.loads(json.dumps(said["preprocess"]))) == encoder.preprocess
    assert identity(node, subject(node, CPU)) == said


def test_a_file_is_said_by_its_hash_and_by_its_tensors(tmp_path):
    encoder = subject(composed(*RANDOM).encoder, CPU)
    found = []
    for name in ("a.safetensors", "b.pt"):
        state = encoder.network.state_dict()
        save_file(state, tmp_path / name) if name.startswith("a") else torch.save(state, tmp_path / name)
        node = composed(*RANDOM[:2], f"encoder.weights={tmp_path / name}").encoder
        found.append(identity(node, subject(node, CPU)))
        assert found[-1]["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert found[0]["fingerprint"] == found[1]["fingerprint"] == identity(node, encoder)["fingerprint"]


def test_the_encoder_that_ships_has_its_hash():
    node = composed().encoder
    said = identity(node, subject(node, CPU))
    assert said["sha256"] == hashlib.sha256(Path(POCKET_WEIGHTS).read_bytes()).hexdigest()
    assert len(said["fingerprint"]) == 64


def words(*overrides):
    run = composed(*overrides)
    return described(identity(run.encoder, subject(run.encoder, CPU, run.defence)))


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
def test_what_a_report_says_of_an_encoder_changes_with_it(override):
    plain = words(*RANDOM)
    assert plain[:2] == [("encoder", "torchvision:squeezenet1_1"), plain[1]] and plain[1][1].startswith("random, ")
    assert plain[-1] == ("defence", "none")
    assert words(*RANDOM, override) != plain


def test_a_report_says_whether_a_range_of_a_defence_is_drawn():
    assert words("defence=blur")[-1] == ("at the middle", "gaussianblur sigma (px)")
    what, drawn = words("defence=blur", "encoder.stochastic=true")[-1]
    assert what == "drawn" and "gaussianblur sigma (px)" in drawn
    assert words("defence=jpeg")[-1][0] == "defence"  # it has no range


def test_the_terminal_says_the_same_in_a_line_but_for_the_preprocessing():
    run = composed("encoder.features=[stages.8]", "defence=blur")
    said = encoder_line({"encoder": identity(run.encoder, subject(run.encoder, CPU, run.defence))})
    assert re.fullmatch(r"encoder: pocket; weights .*; features stages\.8; defence Gauss.*; at the middle .*", said)
    run = composed(*RANDOM)
    said = encoder_line({"encoder": identity(run.encoder, subject(run.encoder, CPU))})
    assert re.fullmatch("encoder: torchvision:squeezenet1_1; weights random, [^;]*; defence none", said)


def test_an_encoder_without_weights_has_none_in_the_report():
    said = [("encoder", "phash"), ("weights", "none"), ("defence", "none")]
    assert words("encoder=phash", "objective=bits") == said


def content(weights):
    """A metrics.json in which nothing else is worth a warning, but for the number of pictures."""
    arms = {
        arm: {"cosine": {"mean": m}, "success": {"mean": 1 - m}, "budget_used": 1.0, "recall_at_1": {"mean": 1.0}}
        for arm, m in (("clean", 1.0), ("noise", 1.0), ("no_eot", 0.5), ("eot", 0.1))
    }
    return {
        "sanity": {"checks": [{"verdict": "failed", "name": "a", "words": "b"}]},
        "arms": arms,
        "queries": ["x"],
        "threat": {"objective": "away"},
        "bank": {"coordinates": ["turn"]},
        "encoder": {"weights": weights},
    }


def test_random_weights_are_the_first_warning():
    said = warnings(content("random"))
    assert said[0].startswith("THE ENCODER HAS RANDOM WEIGHTS") and "SANITY" in said[1]
    for weights in (None, "pretrained", "random.pt"):
        assert warnings(content(weights)) == said[1:]
