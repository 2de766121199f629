"""What is particular to timm: every form of its transform, heads, tags, folders and sizes."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from attacks.encoders.families.timm_models import preprocessing
from attacks.encoders.loading import load_encoder
from attacks.encoders.request import with_seed
from tests.helpers import encoder_laws as laws
from tests.helpers.sampling import mostly_slow
from tests.helpers.tiny_models import TIMM_MODELS

pytestmark = pytest.mark.families
refusal = partial(laws.refusal, family="timm")
timm = pytest.importorskip("timm")

GREY = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
CONFIGS = {
    f"{mode} {interpolation} {share}": {
        "input_size": (3, 224, 224),
        "interpolation": interpolation,
        "crop_pct": share,
        "crop_mode": mode,
        **GREY,
    }
    for mode in ("center", "squash", "border")
    for interpolation, share in (("bicubic", 0.875), ("bilinear", 0.95), ("bicubic", 1.0), ("bilinear", 1.15))
}
for mode in ("center", "squash", "border"):
    CONFIGS[f"{mode} oblong"] = CONFIGS[f"{mode} bicubic 0.875"] | {"input_size": (3, 250, 161)}


@pytest.mark.parametrize("name", mostly_slow(CONFIGS, 3))
def test_preprocessing_equals_timm_on_files_and_tensors(name):
    ours, theirs = preprocessing(CONFIGS[name]), timm.data.create_transform(**CONFIGS[name])
    laws.assert_as_pil(ours, theirs)
    if "border" not in name:  # timm fills in levels of 0..255 even for a tensor in [0,1]
        laws.assert_as_tensor(ours, theirs)


@pytest.mark.parametrize("model", TIMM_MODELS)
def test_a_file_with_a_head_loads_and_features_are_the_input_of_the_head(model, tmp_path):
    torch.manual_seed(3)
    classifier = timm.create_model(model).eval()
    save_file(classifier.state_dict(), tmp_path / "classifier.safetensors")
    encoder = load_encoder("timm", model, weights=tmp_path / "classifier.safetensors")
    images = torch.rand(2, 3, 40, 60)
    with torch.no_grad():
        # The input of the last layers: `pre_logits` of timm's own head.
        tokens = classifier.forward_features(encoder.preprocess(images))
        assert torch.equal(encoder(images), classifier.forward_head(tokens, pre_logits=True))
        logits = load_encoder("timm", model, weights=tmp_path / "classifier.safetensors", output="logits")
        assert torch.equal(logits(images), classifier(encoder.preprocess(images)))


@pytest.mark.parametrize("safe", [True, False])
def test_a_folder_saved_by_timm_loads(safe, tmp_path):
    torch.manual_seed(4)
    network = timm.create_model("test_vit", num_classes=5).eval()
    config = {"crop_mode": "squash", "mean": (0.5, 0.5, 0.5), "crop_pct": 1.0}
    timm.models.save_for_hf(network, tmp_path, safe_serialization=safe, data_config=config)
    encoder, random = (load_encoder("timm", f"local-dir:{tmp_path}", weights=w) for w in (None, "random"))
    laws.assert_same_weights(encoder.network, state := network.state_dict())
    assert encoder.network.state_dict().keys() == {name for name in state if not name.startswith("head.")}
    assert (encoder.preprocess.fit, encoder.preprocess.mean) == ("squash", (0.5, 0.5, 0.5))
    assert encoder.origin.digest() is not None
    assert random.fingerprint() != encoder.fingerprint() and random.preprocess == encoder.preprocess


def test_another_size_is_given_to_a_network_of_fixed_size():
    encoder = load_encoder("timm", "test_vit3", weights="random", preprocess={"size": [48, 80], "crop": [48, 80]})
    network = with_seed(lambda: timm.create_model("test_vit3", num_classes=0)).eval()
    network.set_input_size(img_size=(48, 80))
    images = torch.rand(2, 3, 48, 80)
    with torch.no_grad():
        assert torch.equal(encoder(images), network(encoder.preprocess(images)))
    flexible = load_encoder("timm", "test_resnet", weights="random", preprocess={"crop": [96, 64]})
    assert flexible.preprocess(images).shape[2:] == (96, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"architecture": "evil"}', "config.json` makes no model of timm's .*evil"),
        ('{"architecture": "test_vit", "model_args": {"wings": 2}, "pretrained_cfg": {}}', "makes no model.*wings"),
        ("{", "makes no model"),
    ],
)
def test_a_folder_with_a_bad_configuration_is_refused(config, message, tmp_path):
    (tmp_path / "config.json").write_text(config)
    model = f"local-dir:{tmp_path}"
    refusal("has no model.safetensors or pytorch_model.bin", model, FileNotFoundError)
    refusal("of a folder are pretrained, random or a file", model, weights="tag")
    refusal(message, model, weights="random")


def serve(monkeypatch, folder):
    """Let timm download from a folder. Returns the names of the repositories that it asks for."""
    from huggingface_hub.utils import EntryNotFoundError

    repositories = []

    def download(repo_id, filename, **_):
        repositories.append(repo_id)
        if not (folder / filename).is_file():
            raise EntryNotFoundError("no such file")
        return str(folder / filename)

    monkeypatch.setattr("timm.models._hub.hf_hub_download", download)
    return repositories


def test_a_pickle_and_the_file_of_another_model_are_refused(tmp_path, monkeypatch):
    """In a folder, and from the hub."""
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path, safe_serialization=True)
    file = (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    refusal(r"other\.safetensors. do not fit", "test_vit", weights=file)
    torch.save({"head.weight": laws.Bomb()}, tmp_path / "pytorch_model.bin")
    refusal("hold more than tensors", f"local-dir:{tmp_path}")
    serve(monkeypatch, tmp_path)
    refusal("timm's weights of test_vit .*weights_only=True blocked", "test_vit")


def test_downloaded_weights_are_those_of_the_tag(tmp_path, monkeypatch):
    torch.manual_seed(5)
    classifier = timm.create_model("test_vit").eval()
    save_file(classifier.state_dict(), tmp_path / "model.safetensors")
    repositories = serve(monkeypatch, tmp_path)
    encoder = load_encoder("timm", "test_vit", weights="r160_in1k")
    assert repositories == ["timm/test_vit.r160_in1k"]
    laws.assert_same_weights(encoder.network, classifier.state_dict())
    assert encoder.origin.file is None
