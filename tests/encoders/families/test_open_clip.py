"""open_clip's models against open_clip: tiny ones of every kind, with its transforms, towers and tokenizer."""

import copy
import json
import logging

import pytest
import torch
from safetensors.torch import save_file

from attacks.encoders.families.open_clip_models import preprocessing
from attacks.encoders.loading import load_encoder
from attacks.encoders.request import unseen
from tests.helpers.encoder_laws import (
    assert_as_pil,
    assert_as_tensor,
    assert_every_pixel_counts,
    assert_gradient_is_exact,
    three_pictures,
    within,
)

pytestmark = pytest.mark.families
open_clip = pytest.importorskip("open_clip")

WORDS = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
PLATES = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TIMM = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160}
TOKENS = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
KINDS = {
    "tiny": {"vision_cfg": PLATES},
    "tiny-resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16}},
    "tiny-timm": {"vision_cfg": TIMM, "custom_text": True},
    "tiny-coca": {
        "vision_cfg": PLATES | TOKENS,
        "text_cfg": WORDS | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 76, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
        "custom_text": True,
    },
}
SAID = ["a photo of a cat", "A photo of a very, very long dog. " * 20]

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
        return unseen(lambda: open_clip.create_model(name, pretrained_text=False, **given)).eval()
    torch.manual_seed(seed)
    return open_clip.create_model(name, pretrained_text=False, **given).eval()


def assert_same(features, expected):
    """But for the last digits: frozen attention takes another path through torch."""
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def transform(config):
    return open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**config), is_train=False)


@pytest.mark.parametrize("name", [n for n in CONFIGS if n.split()[0] != "longest" and n != "shortest oblong"])
def test_pictures_are_prepared_as_the_library_prepares_tensors(name):
    assert_as_tensor(preprocessing(CONFIGS[name]), transform(CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_pictures_are_prepared_as_the_library_prepares_files(name):
    # `longest` and an oblong's `shortest` have this test alone: the library asks a tensor for its Pillow size.
    assert_as_pil(preprocessing(CONFIGS[name]), transform(CONFIGS[name]))


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
def test_every_pixel_counts(mode):
    kept = assert_every_pixel_counts(preprocessing(CONFIGS[f"{mode} bicubic"]))
    assert kept == pytest.approx({"shortest": 0.75, "squash": 1, "longest": 1}[mode], abs=0.01)


@pytest.mark.parametrize("name", KINDS)
def test_embeddings_are_those_of_encode_image(name):
    encoder, model = load_encoder("open_clip", name, weights="random"), made(name)
    own = transform(model.visual.preprocess_cfg)
    for picture in three_pictures().values():
        picture = picture.float()
        with torch.no_grad():
            expected = model.encode_image(within(own(picture), encoder.preprocess), normalize=False)
            assert float((encoder(picture) - expected).abs().max()) <= 1e-4 * min(1, float(expected.std()))


@pytest.mark.parametrize("name", KINDS)
def test_texts_are_those_of_encode_text(name):
    encoder, model = load_encoder("open_clip", name, weights="random"), made(name)
    with torch.no_grad():
        expected = model.encode_text(open_clip.get_tokenizer(name)(SAID), normalize=False)
    embeddings = encoder.texts(SAID)
    assert_same(embeddings, expected)
    assert not embeddings.requires_grad
    assert embeddings.shape[1] == encoder(torch.rand(1, 3, 40, 40)).shape[1]


def test_gradients_are_exact():
    assert_gradient_is_exact(load_encoder("open_clip", "tiny", weights="random"))


def test_the_text_tower_is_beside_the_encoder():
    encoder = load_encoder("open_clip", "tiny", weights="random")
    image = made("tiny").visual.state_dict()
    assert {f"network.{name}" for name in image} == set(encoder.state_dict())
    expected = encoder.texts(SAID)
    assert torch.equal(copy.deepcopy(encoder).texts(SAID), expected)
    assert_same(encoder.double().texts(SAID), expected.double())


@pytest.fixture
def tags(tmp_path, monkeypatch):
    """Two tags of the tiny model, with files that lie here."""
    files = {tag: tmp_path / f"{tag}.safetensors" for tag in ("first", "other")}
    for seed, file in enumerate(files.values()):
        save_file(made("tiny", seed + 1).state_dict(), file)
    configs = {
        "first": {"file": str(files["first"]), "quick_gelu": True, "interpolation": "bicubic", **HALVES},
        "other": {"file": str(files["other"]), "interpolation": "bilinear", "resize_mode": "squash"},
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", configs)
    return files


def test_pretrained_is_the_first_tag_with_the_gelu_it_was_trained_with(tags):
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


def test_a_tag_has_weights_and_preprocessing_of_its_own(tags):
    encoder = load_encoder("open_clip", "tiny", weights="other")
    model = made("tiny", pretrained="other")
    assert all(torch.equal(t, encoder.network.state_dict()[n]) for n, t in model.visual.state_dict().items())
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    assert torch.equal(encoder.texts(SAID), load_encoder("open_clip", "tiny", weights=tags["other"]).texts(SAID))


def test_a_file_and_random_weights_have_the_preprocessing_of_the_first_tag(tags):
    expected = load_encoder("open_clip", "tiny").preprocess
    for weights in (tags["other"], "random"):
        assert load_encoder("open_clip", "tiny", weights=weights).preprocess == expected


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_both_towers(name, tmp_path):
    model = made(name, 5)
    for value in model.parameters():  # open_clip leaves some of CoCa's weights unset, and they may hold NaN
        value.data.nan_to_num_(0, 0, 0)
    # As a training script writes it: wrapped, and with a scale of another shape.
    state = {f"module.{key}": t for key, t in model.state_dict().items()} | {"module.logit_scale": torch.ones(1)}
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "epoch.pt")
    encoder = load_encoder("open_clip", name, weights=tmp_path / "epoch.pt")
    images = torch.rand(2, 3, 40, 60)
    with torch.no_grad():
        assert_same(encoder(images), model.encode_image(encoder.preprocess(images), normalize=False))
        expected = model.encode_text(open_clip.get_tokenizer(name)(SAID), normalize=False)
    assert_same(encoder.texts(SAID), expected)
    assert encoder.origin.digest() is not None


@pytest.mark.parametrize("prefix", ["visual.", ""])
def test_a_file_of_the_image_tower_has_no_texts(prefix, tmp_path):
    image = {f"{prefix}{key}": t for key, t in made("tiny", 6).visual.state_dict().items()}
    save_file(image, tmp_path / "image.safetensors")
    encoder = load_encoder("open_clip", "tiny", weights=tmp_path / "image.safetensors")
    assert all(torch.equal(image[f"{prefix}{key}"], t) for key, t in encoder.network.state_dict().items())
    assert encoder.texts is None


def test_nothing_is_said_of_random_weights(tags, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_encoder("open_clip", "tiny", weights=tags["other"])
        (tmp_path / "empty").mkdir()
        load_encoder("open_clip", folder_of(tmp_path / "empty"), weights="random")
    assert not caplog.records


def folder_of(tmp_path, **changes):
    config = {"embed_dim": 12, "text_cfg": WORDS, "vision_cfg": PLATES} | changes
    said = {"model_cfg": config, "preprocess_cfg": {"interpolation": "bilinear", "resize_mode": "squash"}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(said))
    return f"local-dir:{tmp_path}"


def test_a_folder(tmp_path):
    model = made("tiny", 7)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    encoder = load_encoder("open_clip", folder_of(tmp_path))
    assert all(torch.equal(t, encoder.network.state_dict()[n]) for n, t in model.visual.state_dict().items())
    assert (encoder.preprocess.fit, encoder.preprocess.kernel) == ("squash", "pil_bilinear")
    assert encoder.origin.file == tmp_path / "open_clip_model.safetensors"
    with torch.no_grad():
        assert_same(encoder.texts(SAID), model.encode_text(open_clip.get_tokenizer("tiny")(SAID)))


def test_another_size_is_for_towers_of_timm():
    encoder = load_encoder(
        "open_clip", "tiny-timm", weights="random", preprocess={"size": [48, 80], "crop": [48, 80]}
    )
    model = made("tiny-timm")
    model.visual.set_input_size((48, 80))
    images = torch.rand(2, 3, 48, 80)
    with torch.no_grad():
        assert_same(encoder(images), model.encode_image(encoder.preprocess(images)))
    refusal("tiny takes 32x32 pixels and no others", model="tiny", weights="random", preprocess={"crop": [48, 48]})


def refusal(message, kind=ValueError, **given):
    with pytest.raises(kind, match=message) as caught:
        load_encoder("open_clip", **given)
    assert "\n" not in str(caught.value)
