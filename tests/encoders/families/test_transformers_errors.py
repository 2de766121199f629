"""What transformers' models are refused for, in one line; and that nothing that comes with one is run."""

import json
import shutil

import pytest
import torch

from attacks.encoders.loading import load_encoder
from tests.helpers.encoder_laws import Bomb

pytest.importorskip("transformers")
from tests.encoders.families.test_transformers import (
    SQUARE,
    VISION,
    configured,
    copied,
    hf,
    loaded,
    processing,
    saved,
)

pytestmark = pytest.mark.families
__all__ = ["saved"]  # a fixture


def refused(message, *arguments, kind=ValueError, **options):
    with pytest.raises(kind, match=message) as caught:
        loaded(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_name_without_a_network(monkeypatch, tmp_path):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refused(r"nobody/nothing of the hub could not be fetched .*give a local folder .*model=FOLDER", "nobody/nothing")


def test_the_hubs_cache_is_a_folder_like_any(monkeypatch, saved, tmp_path):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--some--vit"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    shutil.copytree(saved("vit"), place / "snapshots" / ("a" * 40))
    assert loaded("some/vit").fingerprint() == loaded(saved("vit")).fingerprint()
    assert loaded("some/vit").origin.file.name == "model.safetensors"
    (place / "snapshots" / ("a" * 40) / "model.safetensors").unlink()
    refused("has no model.safetensors", "some/vit", kind=FileNotFoundError)
    assert loaded("some/vit", weights="random").title == "transformers:some/vit"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_folder_is_named(name):
    refused(r"is no folder here, and no name on the hub", name, kind=FileNotFoundError)


def test_a_folder_without_its_files(saved, tmp_path):
    refused("has no config.json", tmp_path, kind=FileNotFoundError)
    folder = copied(saved, "vit", tmp_path)
    (folder / "model.safetensors").unlink()
    refused(r"has no model.safetensors .*: give the weights as encoder.weights=FILE", folder, kind=FileNotFoundError)
    assert loaded(folder, weights="random")
    (folder / "preprocessor_config.json").unlink()
    refused(r"says nothing of its preprocessing: give `encoder.preprocess.size`", folder, weights="random")
    given = {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert loaded(folder, weights="random", preprocess=given).preprocess.size == 32


def test_a_pickle_is_refused_unread(saved, tmp_path):
    folder = copied(saved, "vit", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"layernorm.bias": Bomb()}, folder / "pytorch_model.bin")
    refused(r"has no model.safetensors, only pytorch_model.bin: a pickle can run code .* refused", folder)
    refused("more than tensors.*refused", folder, weights=folder / "pytorch_model.bin")


def test_code_that_comes_with_a_model_is_never_run(saved, tmp_path):
    folder, witness = copied(saved, "vit", tmp_path), tmp_path / "witness"
    (folder / "mine.py").write_text(f"open({str(witness)!r}, 'w').write('run')\nclass Mine: pass\n")
    own = {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine", "AutoImageProcessor": "mine.Mine"}
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": own}
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((folder / "preprocessor_config.json").read_text()) | {"auto_map": own}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert loaded(folder).fingerprint() == loaded(saved("vit")).fingerprint()  # a kind that the library has itself
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"image_processor_type": "Mine"}))
    (folder / "config.json").write_text(json.dumps(config | {"image_processor_type": "Mine"}))
    refused(r"the image processor of .* cannot be read by transformers: .* custom code", folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    refused(r"has no model_type 'mine'; the code that comes with it \(auto_map\) is never run", folder)
    assert not witness.exists()


@pytest.mark.parametrize("place", ["in the file", "in another file", "in a part"])
def test_a_quantised_model_is_refused(saved, tmp_path, place):
    config = json.loads((saved("clip") / "config.json").read_text())
    quantised = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    changes = {"in the file": quantised, "in a part": {"text_config": config["text_config"] | quantised}}
    other = {"configuration_files": ["config.4.0.0.json"]}
    folder = copied(saved, "clip", tmp_path, **changes.get(place, other))
    (folder / "config.4.0.0.json").write_text(json.dumps(config | quantised))
    refused("is quantised, and has no exact gradient", folder)


def test_an_attention_from_the_hub_is_not_taken(saved, tmp_path):
    """`attn_implementation` may name a repository with a kernel, which is code."""
    config = json.loads((saved("clip") / "config.json").read_text())
    config["vision_config"]["attn_implementation"] = "somebody/kernel"
    changes = {"attn_implementation": "somebody/kernel", "vision_config": config["vision_config"]}
    folder = copied(saved, "clip", tmp_path, **changes)
    for weights in ("pretrained", "random"):
        network = loaded(folder, weights=weights).network.vision_model
        assert network.config._attn_implementation == "sdpa"


def test_an_index_cannot_leave_its_folder(saved, tmp_path):
    folder = copied(saved, "vit", tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    for listed in ({"a": "../other.safetensors"}, {"a": "pytorch_model.bin"}, ["model.safetensors"]):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
        refused("model.safetensors.index.json must list safetensors beside it", folder)


def test_weights_of_another_model_are_refused(saved, tmp_path):
    folder = copied(saved, "vit", tmp_path, hidden_size=32)
    refused(r"do not fit ViTModel: 0 keys missing, \d+ of another shape \(first: .*\(1, 1, 16\), must be", folder)
    other = saved("siglip") / "model.safetensors"
    refused(r"do not fit ViTModel: \d+ keys missing.*are they of another model", saved("vit"), weights=other)
    refused(r"`encoder.weights` must be pretrained, random or a file; got 'laion'", saved("vit"), weights="laion")


@pytest.mark.parametrize(
    ("kind", "pool", "message"),
    [
        ("vit", "max", r"`encoder.pool` must be one of pooled, cls, mean, or null; got 'max'"),
        ("siglip", "cls", r"has no class token; take pooled or mean"),
    ],
)
def test_an_unknown_pool_is_named(saved, kind, pool, message):
    refused(message, saved(kind), pool=pool)


def test_tokens_that_are_not_the_patches_are_refused(tmp_path):
    """A masked autoencoder drops three patches of four at random."""
    hf.ViTMAEModel(hf.ViTMAEConfig(**VISION)).save_pretrained(tmp_path)
    processing("vit").save_pretrained(tmp_path)
    for pool in (None, "cls", "mean"):
        refused(r"nothing says where its patches are", tmp_path, pool=pool)


@pytest.mark.parametrize(
    ("name", "given", "step"),
    [
        ("PoolFormerImageProcessor", {}, "_preprocess"),
        ("EfficientNetImageProcessor", {}, "_fuse_mean_std_and_rescale_factor"),
        ("ViTImageProcessor", SQUARE | {"do_pad": True, "pad_size": SQUARE["size"]}, "do_pad"),
        ("ViTImageProcessor", SQUARE | {"resample": 5}, "resample=5"),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 20, "longest_edge": 40}}, "size="),
        ("CLIPImageProcessor", {"size": {"longest_edge": 40}}, "size="),
        ("ConvNextImageProcessor", {"do_center_crop": True, "crop_size": SQUARE["size"]}, "do_center_crop"),
    ],
)
def test_an_unsupported_step_is_named(saved, tmp_path, name, given, step):
    folder = copied(saved, "vit", tmp_path)
    getattr(hf, name)(**given).save_pretrained(folder)
    refused(rf"the processor {name} has a step that .* cannot express: {step}", folder)


def test_a_picture_of_the_wrong_size_is_one_line(saved):
    refused(r"does not take a picture of 48x48 by itself \(Input image size", saved("vit"), preprocess={"size": 48})


def test_the_random_stream_is_left_alone(saved, tmp_path):
    hf.ViTForImageClassification(configured("vit")).save_pretrained(tmp_path)
    processing("vit").save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    load_encoder("transformers", str(tmp_path))
    loaded(saved("vit"), weights="random")
    assert torch.equal(torch.random.get_rng_state(), state)
