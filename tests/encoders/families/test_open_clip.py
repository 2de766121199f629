"""open_clip's models against open_clip: tiny ones of every kind, with its transforms, towers and tokenizer."""

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
from attacks.encoders.request import seeded
from tests.helpers import encoder_laws as laws

pytestmark = pytest.mark.families
refused = partial(laws.refusal, family="open_clip")
open_clip = pytest.importorskip("open_clip")

WORDS = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TIMM = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160}
TOKENS = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
KINDS = {
    "tiny": {"vision_cfg": VISION},
    "tiny-resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16}},
    "tiny-timm": {"vision_cfg": TIMM, "custom_text": True},
    "tiny-coca": {
        "vision_cfg": VISION | TOKENS,
        "text_cfg": WORDS | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 76, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
        "custom_text": True,
    },
}
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


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    """The tiny models among the library's own."""
    folder = tmp_path_factory.mktemp("configs")
    for name, given in KINDS.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 12, "text_cfg": WORDS} | given))
    open_clip.add_model_config(folder)
    yield
    open_clip.factory._MODEL_CONFIG_PATHS.remove(folder)
    for name in KINDS:
        del open_clip.factory._MODEL_CONFIGS[name]


def made(name, seed=None, **given):
    """The library's model; without a seed, as the encoder with random weights has it."""
    if seed is None:
        return seeded(lambda: open_clip.create_model(name, pretrained_text=False, **given)).eval()
    torch.manual_seed(seed)
    return open_clip.create_model(name, pretrained_text=False, **given).eval()


def assert_same(features, expected):
    """Equal except for the last digits: frozen attention takes another path in torch."""
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def transform(config):
    return open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**config), is_train=False)


@pytest.mark.parametrize("name", CONFIGS)
def test_preprocessing_equals_the_library_on_files_and_tensors(name):
    ours, theirs = preprocessing(CONFIGS[name]), transform(CONFIGS[name])
    laws.assert_as_pil(ours, theirs)
    if not name.startswith("longest") and name != "shortest oblong":  # these need a Pillow size
        laws.assert_as_tensor(ours, theirs)


@pytest.mark.parametrize("name", KINDS)
def test_embeddings_equal_encode_image(name):
    encoder, model = load_encoder("open_clip", name, weights="random"), made(name)
    laws.assert_embeddings(
        encoder, partial(model.encode_image, normalize=False), transform(model.visual.preprocess_cfg)
    )


@pytest.mark.parametrize("name", KINDS)
def test_texts_equal_encode_text(name):
    encoder, model = load_encoder("open_clip", name, weights="random"), made(name)
    with torch.no_grad():
        expected = model.encode_text(open_clip.get_tokenizer(name)(TEXTS), normalize=False)
    embeddings = encoder.texts(TEXTS)
    assert_same(embeddings, expected)
    assert not embeddings.requires_grad
    assert embeddings.shape[1] == encoder(torch.rand(1, 3, 40, 40)).shape[1]


def test_gradients_are_exact():
    laws.assert_gradient_is_exact(load_encoder("open_clip", "tiny", weights="random"))


def test_the_text_tower_is_not_part_of_the_state_dict():
    encoder = laws.assert_random_weights_repeat("open_clip", "tiny")
    image = made("tiny").visual.state_dict()
    assert {f"network.{name}" for name in image} == set(encoder.state_dict())
    expected = encoder.texts(TEXTS)
    assert torch.equal(copy.deepcopy(encoder).texts(TEXTS), expected)
    assert_same(encoder.double().texts(TEXTS), expected.double())


@pytest.fixture
def tags(tmp_path, monkeypatch):
    """Two tags of the tiny model, with local files."""
    files = {tag: tmp_path / f"{tag}.safetensors" for tag in ("first", "other")}
    for seed, file in enumerate(files.values()):
        save_file(made("tiny", seed + 1).state_dict(), file)
    configs = {
        "first": {"file": str(files["first"]), "quick_gelu": True, "interpolation": "bicubic", **HALVES},
        "other": {"file": str(files["other"]), "interpolation": "bilinear", "resize_mode": "squash"},
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", configs)
    return files


def test_pretrained_is_the_first_tag_with_its_own_gelu(tags):
    encoder = load_encoder("open_clip", "tiny")
    model = made("tiny", pretrained="first", force_quick_gelu=True)
    images = torch.rand(2, 3, 40, 60)
    with torch.no_grad():
        assert_same(encoder(images), model.encode_image(encoder.preprocess(images)))
    assert encoder.preprocess == preprocessing(model.visual.preprocess_cfg)
    assert encoder.preprocess.mean == HALVES["mean"]
    assert encoder.origin.file is None
    plain = load_encoder("open_clip", "tiny", weights=tags["first"])
    assert plain.fingerprint() == encoder.fingerprint()
    assert float((plain(images) - encoder(images)).abs().max()) > 1e-3


def test_a_tag_has_its_own_weights_and_preprocessing(tags):
    encoder = load_encoder("open_clip", "tiny", weights="other")
    model = made("tiny", pretrained="other")
    laws.assert_same_weights(encoder.network, model.visual.state_dict())
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    assert torch.equal(encoder.texts(TEXTS), load_encoder("open_clip", "tiny", weights=tags["other"]).texts(TEXTS))


def test_files_and_random_weights_use_the_preprocessing_of_the_first_tag(tags):
    expected = load_encoder("open_clip", "tiny").preprocess
    for weights in (tags["other"], "random"):
        assert load_encoder("open_clip", "tiny", weights=weights).preprocess == expected


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_both_towers_loads(name, tmp_path):
    model = made(name, 5)
    for value in model.parameters():  # open_clip leaves some of CoCa's weights unset, and they may hold NaN
        value.data.nan_to_num_(0, 0, 0)
    # As written by a training script: wrapped, and with a scale of another shape.
    state = {f"module.{key}": t for key, t in model.state_dict().items()} | {"module.logit_scale": torch.ones(1)}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "epoch.pt")
    encoder = load_encoder("open_clip", name, weights=tmp_path / "epoch.pt")
    images = torch.rand(2, 3, 40, 60)
    with torch.no_grad():
        assert_same(encoder(images), model.encode_image(encoder.preprocess(images), normalize=False))
        expected = model.encode_text(open_clip.get_tokenizer(name)(TEXTS), normalize=False)
    assert_same(encoder.texts(TEXTS), expected)
    assert encoder.origin.digest() is not None


@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_a_file_of_the_image_tower_alone_has_no_texts(prefix, tmp_path):
    image = made("tiny", 6).visual.state_dict()
    save_file({f"{prefix}{key}": t for key, t in image.items()}, tmp_path / "image.safetensors")
    encoder = load_encoder("open_clip", "tiny", weights=tmp_path / "image.safetensors")
    laws.assert_same_weights(encoder.network, image)
    assert encoder.texts is None


def test_random_weights_give_no_warning(tags, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_encoder("open_clip", "tiny", weights=tags["other"])
        (tmp_path / "empty").mkdir()
        load_encoder("open_clip", folder_of(tmp_path / "empty"), weights="random")
    assert not caplog.records


def folder_of(tmp_path, **changes):
    config = {"embed_dim": 12, "text_cfg": WORDS, "vision_cfg": VISION} | changes
    content = {"model_cfg": config, "preprocess_cfg": {"interpolation": "bilinear", "resize_mode": "squash"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    return f"local-dir:{tmp_path}"


def test_a_folder_loads_with_its_preprocessing(tmp_path):
    model = made("tiny", 7)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    encoder = load_encoder("open_clip", folder_of(tmp_path))
    laws.assert_same_weights(encoder.network, model.visual.state_dict())
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    assert encoder.origin.file == tmp_path / "open_clip_model.safetensors"
    with torch.no_grad():
        assert_same(encoder.texts(TEXTS), model.encode_text(open_clip.get_tokenizer("tiny")(TEXTS)))


def test_only_timm_towers_take_another_size():
    encoder = load_encoder(
        "open_clip", "tiny-timm", weights="random", preprocess={"size": [48, 80], "crop": [48, 80]}
    )
    model = made("tiny-timm")
    model.visual.set_input_size((48, 80))
    images = torch.rand(2, 3, 48, 80)
    with torch.no_grad():
        assert_same(encoder(images), model.encode_image(encoder.preprocess(images)))
    given = {"weights": "random", "preprocess": {"crop": [48, 48]}}
    refused("tiny takes 32x32 pixels and no others", "tiny", **given)


REFUSED = {
    "unknown model": ({"model": "ViT-B-33"}, "one of open_clip's .*'ViT-B-33'.*near it: ViT-B-32"),
    "unknown tag": (
        {"model": "tiny", "weights": "best"},
        "of tiny must be first, other, pretrained, random or a file",
    ),
    "none offered": ({"model": "tiny-coca"}, "open_clip has no weights for tiny-coca"),
    "no file": ({"model": "tiny", "weights": "gone.safetensors"}, "gone.safetensors. do not exist"),
    "no folder": ({"model": "local-dir:nowhere"}, "there is no `nowhere/open_clip_config.json`"),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_have_one_line(given, message, tags):
    refused(message, kind=(ValueError, FileNotFoundError), **given)


def test_a_file_of_another_model_is_refused(tmp_path):
    save_file(made("tiny-resnet", 1).state_dict(), tmp_path / "other.safetensors")
    refused(r"other\.safetensors. do not fit", "tiny", weights=tmp_path / "other.safetensors")


def test_a_bad_folder_is_refused(tmp_path):
    model = folder_of(tmp_path, vision_cfg=VISION | {"wings": 2})
    refused("has no open_clip_model.safetensors or", model, FileNotFoundError)
    refused("of a folder are pretrained, random or a file", model, weights="tag")
    refused("open_clip_config.json` makes no model of open_clip's .*wings", model, weights="random")
    (tmp_path / "open_clip_config.json").write_text("[]")
    refused("makes no model of open_clip's", model, weights="random")


def assert_nothing_ran():
    assert not hasattr(sys.modules["builtins"], "ran_by_test_family_open_clip")


def test_pickles_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "open_clip_pytorch_model.bin"
    torch.save({"logit_scale": laws.Bomb()}, file)
    refused("hold more than tensors", "tiny", weights=file)
    refused("hold more than tensors", folder_of(tmp_path))
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"bad": {"file": str(file)}})
    refused("open_clip's weights bad of tiny cannot be used .*Weights only load failed", "tiny")


def test_the_code_of_a_tokenizer_is_not_run(tmp_path):
    (tmp_path / "evil.py").write_text("import builtins; builtins.ran_by_test_family_open_clip = True")
    auto = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto, "tokenizer_class": "Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    text = WORDS | {"hf_tokenizer_name": "evil", "tokenizer_kwargs": {"trust_remote_code": True}}
    encoder = load_encoder("open_clip", folder_of(tmp_path, text_cfg=text), weights="random")
    with pytest.raises(ValueError, match=r"tokenizer of .* cannot be used .*custom code") as caught:
        encoder.texts(TEXTS)
    assert "\n" not in str(caught.value)
    assert_nothing_ran()


def test_the_code_of_a_text_tower_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import builtins; builtins.ran_by_test_family_open_clip = True")
    auto = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    monkeypatch.setattr("builtins.input", lambda _: "y")  # as `yes |` does
    folder = folder_of(tmp_path, text_cfg={"hf_model_name": str(tmp_path), "hf_tokenizer_name": str(tmp_path)})
    refused("makes no model of open_clip's", folder, weights="random")
    assert_nothing_ran()


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_has_one_line(monkeypatch, caplog):
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"far": {"hf_hub": "nobody/nothing/"}})
    with caplog.at_level(logging.WARNING):
        refused("open_clip's weights far of tiny could not be fetched.*encoder.weights=random", "tiny")
    assert not caplog.records
