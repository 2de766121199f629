"""What is particular to open_clip: every form of its transform, texts, tags, folders, and code that is never run."""

import copy
import json
import logging
import sys
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from attacks.encoders.families.open_clip_models import preprocessing
from attacks.encoders.loading import load_encoder
from attacks.encoders.request import with_seed
from tests.helpers import encoder_laws as laws
from tests.helpers.sampling import mostly_slow
from tests.helpers.tiny_models import CLIP_VISION, CLIP_WORDS, CLIPS

pytestmark = [pytest.mark.families, pytest.mark.usefixtures("tiny_clips")]
refusal = partial(laws.refusal, family="open_clip")
load = partial(load_encoder, "open_clip")
open_clip = pytest.importorskip("open_clip")

TEXTS = ["a photo of a cat", "A photo of a very, very long dog. " * 20]
HALVES = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
CONFIGS = {
    f"{mode} {interpolation}": {"size": 224, "interpolation": interpolation, "resize_mode": mode, **HALVES}
    for mode in ("shortest", "squash", "longest")
    for interpolation in ("bicubic", "bilinear", "random")
}
for mode in ("shortest", "squash", "longest"):
    CONFIGS[f"{mode} oblong"] = CONFIGS[f"{mode} bilinear"] | {"size": (250, 161)}
CONFIGS["longest grey"] = CONFIGS["longest bilinear"] | {"fill_color": 100}


def library_model(name, seed=None, **options):
    """The library's model; without a seed, as the encoder with random weights has it."""
    create = partial(open_clip.create_model, name, pretrained_text=False, **options)
    if seed is None:
        return with_seed(create).eval()
    torch.manual_seed(seed)
    return create().eval()


@torch.no_grad()
def assert_same_towers(encoder, model, texts=True):
    """Equal except for the last digits: frozen attention takes another path in torch."""
    images = torch.rand(2, 3, 40, 60)
    expected = model.encode_image(encoder.preprocess(images), normalize=False)
    torch.testing.assert_close(encoder(images), expected, rtol=0, atol=1e-5)
    if texts:
        embeddings = encoder.texts(TEXTS)
        expected = model.encode_text(open_clip.get_tokenizer("tiny")(TEXTS), normalize=False)
        torch.testing.assert_close(embeddings, expected, rtol=0, atol=1e-5)
        assert embeddings.shape[1] == encoder(images).shape[1] and not embeddings.requires_grad


@pytest.mark.parametrize("name", mostly_slow(CONFIGS, 3))
def test_preprocessing_equals_the_library_on_files_and_tensors(name):
    config = open_clip.transform.PreprocessCfg(**CONFIGS[name])
    ours, theirs = preprocessing(CONFIGS[name]), open_clip.transform.image_transform_v2(config, is_train=False)
    laws.assert_as_pil(ours, theirs)
    if not name.startswith("longest") and name != "shortest oblong":  # these need a Pillow size
        laws.assert_as_tensor(ours, theirs)


def test_the_text_tower_is_not_part_of_the_state_dict():
    encoder, model = load("tiny", weights="random"), library_model("tiny")
    assert {f"network.{name}" for name in model.visual.state_dict()} == set(encoder.state_dict())
    assert_same_towers(encoder, model)
    expected = encoder.texts(TEXTS)
    assert torch.equal(copy.deepcopy(encoder).texts(TEXTS), expected)
    torch.testing.assert_close(encoder.double().texts(TEXTS), expected.double(), rtol=0, atol=1e-5)


@pytest.fixture
def tags(tmp_path, monkeypatch):
    """Two tags of the tiny model, with local files."""
    files = {tag: tmp_path / f"{tag}.safetensors" for tag in ("first", "other")}
    for seed, file in enumerate(files.values()):
        save_file(library_model("tiny", seed + 1).state_dict(), file)
    configs = {
        "first": {"file": str(files["first"]), "quick_gelu": True, "interpolation": "bicubic", **HALVES},
        "other": {"file": str(files["other"]), "interpolation": "bilinear", "resize_mode": "squash"},
        "third": {"file": str(files["other"]), "interpolation": "bicubic", "resize_mode": "shortest", **HALVES},
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", configs)
    return files


def test_pretrained_is_the_first_tag_with_its_own_gelu(tags):
    encoder, model = load("tiny"), library_model("tiny", pretrained="first", force_quick_gelu=True)
    assert_same_towers(encoder, model)
    assert encoder.preprocess == preprocessing(model.visual.preprocess_cfg)
    assert encoder.preprocess.mean == HALVES["mean"] and encoder.origin.file is None
    images, plain, quick = (
        torch.rand(2, 3, 40, 60),
        *(load("tiny", weights=tags["first"], tag=t) for t in ("third", "first")),
    )
    assert plain.fingerprint() == encoder.fingerprint()
    assert float((plain(images) - encoder(images)).abs().max()) > 1e-3
    assert torch.equal(quick(images), encoder(images)) and quick.preprocess == encoder.preprocess


def test_a_tag_has_its_own_weights_and_preprocessing_and_a_file_must_name_one(tags, monkeypatch):
    encoder, first = load("tiny", weights="other"), load("tiny").preprocess
    laws.assert_same_weights(encoder.network, library_model("tiny", pretrained="other").visual.state_dict())
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    named = load("tiny", weights=tags["other"], tag="other")
    assert torch.equal(encoder.texts(TEXTS), named.texts(TEXTS)) and named.preprocess == encoder.preprocess
    assert load("tiny", weights="random").preprocess == first
    refusal("of tiny must be first, other, third, pretrained, random or a file", "tiny", weights="best")
    message = (
        r"`encoder.tag` must be the tag of tiny .* differs \(first, other\); got {}: give one of first, other, third"
    )
    refusal(message.format("None"), "tiny", weights=tags["other"])
    refusal(message.format("best"), "tiny", weights=tags["other"], tag="best")
    refusal("`encoder.tag` says of which tag a file .*got 'first': leave it out", "tiny", tag="first")
    configs = open_clip.pretrained._PRETRAINED["tiny"]  # the first and the third are alike
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {t: configs[t] for t in ("first", "third")})
    assert load("tiny", weights=tags["other"]).preprocess == first


@pytest.mark.parametrize("name", CLIPS)
def test_a_file_of_both_towers_loads(name, tmp_path):
    model = library_model(name, 5)
    for value in model.parameters():  # open_clip leaves some of CoCa's weights unset, and they may hold NaN
        value.data.nan_to_num_(0, 0, 0)
    # As written by a training script: wrapped, and with a scale of another shape.
    state = {f"module.{key}": t for key, t in model.state_dict().items()} | {"module.logit_scale": torch.ones(1)}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "epoch.pt")
    encoder = load(name, weights=tmp_path / "epoch.pt")
    assert_same_towers(encoder, model)
    assert encoder.origin.digest() is not None


@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_a_file_of_the_image_tower_alone_has_no_texts(prefix, tmp_path):
    image = library_model("tiny", 6).visual.state_dict()
    save_file({f"{prefix}{key}": t for key, t in image.items()}, tmp_path / "image.safetensors")
    encoder = load("tiny", weights=tmp_path / "image.safetensors")
    laws.assert_same_weights(encoder.network, image)
    assert encoder.texts is None


def write_folder(folder, **changes):
    config = {"embed_dim": 12, "text_cfg": CLIP_WORDS, "vision_cfg": CLIP_VISION} | changes
    content = {"model_cfg": config, "preprocess_cfg": {"interpolation": "bilinear", "resize_mode": "squash"}}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    return f"local-dir:{folder}"


def test_a_folder_loads_with_its_preprocessing_and_random_weights_give_no_warning(tmp_path, caplog):
    model = library_model("tiny", 7)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    encoder = load(write_folder(tmp_path))
    assert_same_towers(encoder, model)
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    assert encoder.origin.file == tmp_path / "open_clip_model.safetensors"
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load(write_folder(tmp_path), weights="random")
        load("tiny", weights=encoder.origin.file)
    assert not caplog.records


def test_only_timm_towers_take_another_size():
    encoder = load("tiny-timm", weights="random", preprocess={"size": [48, 80], "crop": [48, 80]})
    model = library_model("tiny-timm")
    model.visual.set_input_size((48, 80))
    assert_same_towers(encoder, model, texts=False)


def test_bad_folders_and_files_are_refused(tmp_path):
    save_file(library_model("tiny-resnet", 1).state_dict(), tmp_path / "other.safetensors")
    refusal(r"other\.safetensors. do not fit", "tiny", weights=tmp_path / "other.safetensors")
    model = write_folder(tmp_path, vision_cfg=CLIP_VISION | {"wings": 2})
    refusal("has no open_clip_model.safetensors or", model, FileNotFoundError)
    refusal("of a folder are pretrained, random or a file", model, weights="tag")
    refusal("open_clip_config.json` makes no model of open_clip's .*wings", model, weights="random")
    (tmp_path / "open_clip_config.json").write_text("[]")
    refusal("makes no model of open_clip's", model, weights="random")


def test_pickles_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "open_clip_pytorch_model.bin"
    torch.save({"logit_scale": laws.Bomb()}, file)
    refusal("hold more than tensors", "tiny", weights=file)
    refusal("hold more than tensors", write_folder(tmp_path))
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"bad": {"file": str(file)}})
    refusal("open_clip's weights bad of tiny cannot be used .*Weights only load failed", "tiny")


def test_the_code_of_a_tokenizer_or_a_text_tower_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import builtins; builtins.ran_by_test_open_clip = True")
    tokenizer = {"AutoTokenizer": ["evil.Tokenizer", None]}
    fields = {"auto_map": tokenizer, "tokenizer_class": "Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": tokenizer}))
    text = CLIP_WORDS | {"hf_tokenizer_name": "evil", "tokenizer_kwargs": {"trust_remote_code": True}}
    encoder = load(write_folder(tmp_path, text_cfg=text), weights="random")
    with pytest.raises(ValueError, match=r"tokenizer of .* cannot be used .*custom code") as info:
        encoder.texts(TEXTS)
    assert "\n" not in str(info.value)
    tower = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": tower}))
    monkeypatch.setattr("builtins.input", lambda _: "y")  # as `yes |` does
    folder = write_folder(tmp_path, text_cfg={"hf_model_name": str(tmp_path), "hf_tokenizer_name": str(tmp_path)})
    refusal("makes no model of open_clip's", folder, weights="random")
    assert not hasattr(sys.modules["builtins"], "ran_by_test_open_clip")


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_has_one_line(monkeypatch, caplog):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"far": {"hf_hub": "nobody/nothing/"}})
    with caplog.at_level(logging.WARNING):
        refusal("open_clip's weights far of tiny could not be fetched.*encoder.weights=random", "tiny")
    assert not caplog.records
