"""What is particular to torchvision: its zoo of heads, old names of weights, downloads, the size of a ViT."""

import hashlib
import io
import re
import urllib.error
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torchvision.models.densenet import _load_state_dict

from attacks.encoders.families.torchvision_models import _ARGUMENTS, _behead, _side, load, preprocessing
from attacks.encoders.loading import load_encoder
from attacks.encoders.request import Request
from tests.helpers import encoder_laws as laws
from tests.helpers.sampling import mostly_nightly
from tests.helpers.tiny_models import before_the_head

MODELS = torchvision.models.list_models(module=torchvision.models)
#: Larger models run on the meta device only.
LARGE = 3e7
refusal = partial(laws.refusal, family="torchvision")


def not_large():
    sizes = {m: torchvision.models.get_model_weights(m).DEFAULT.meta["num_params"] for m in MODELS}
    return [model for model in MODELS if sizes[model] <= LARGE]


def library_model(model, seed=1, **arguments):
    """torchvision's own, as it builds it for pretrained weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model in ("inception_v3", "googlenet"):
            arguments |= {"transform_input": True, "aux_logits": True, "init_weights": False}
        if model == "vit_h_14":
            arguments |= {"image_size": 518}
        return torchvision.models.get_model(model, weights=None, **arguments).eval()


def write_weights(path, network, drop=()):
    state = {k: v.contiguous() for k, v in network.state_dict().items() if not k.startswith(tuple(drop))}
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


@pytest.mark.parametrize("model", mostly_nightly(not_large(), 5))
def test_features_are_the_input_of_the_head(tmp_path, model):
    network = library_model(model)
    encoder = load_encoder("torchvision", model, weights=write_weights(tmp_path / "w.pt", network))
    preset = torchvision.models.get_model_weights(model).DEFAULT.transforms()
    pictures = laws.three_pictures()
    for name in pictures:
        # In float64, because torchvision's resize in float32 is off by up to 3e-5; the output is float32.
        expected = before_the_head(network, laws.in_range(preset(pictures[name]), encoder.preprocess))
        with torch.no_grad():
            features = encoder(pictures[name].float())
        assert features.shape == expected.shape
        assert float((features - expected).abs().max()) <= 1e-4 * max(1.0, float(expected.abs().max())), name
    assert float(features.std()) > 0
    logits = load_encoder("torchvision", model, weights=tmp_path / "w.pt", output="logits")
    with torch.no_grad():
        assert torch.equal(logits(pictures[name].float()), network(encoder.preprocess(pictures[name].float())))


#: A RegNet needs values while it is built; all are one class, and the small ones run above.
ON_META = [model for model in MODELS if not model.startswith("regnet")]


@pytest.mark.slow
@pytest.mark.parametrize("model", ON_META)
def test_every_model_gives_one_row_per_picture(model):
    """The largest too, on the meta device: the head is removed, the features are its input."""
    preset = torchvision.models.get_model_weights(model).DEFAULT.transforms()
    arguments = _ARGUMENTS.get(model, {}) | _side(model, preprocessing(preset))
    with torch.device("meta"):
        network = torchvision.models.get_model(model, weights=None, **arguments).eval()
        (head,) = [p for p in network.parameters() if p.dim() > 1 and len(p) == 1000]
        _behead(network)
        features = network(torch.empty(2, 3, *preset.crop_size * 2))
    assert not any(len(p) == 1000 for p in network.parameters() if p.dim())
    assert features.shape == (2, head.shape[1])


@pytest.mark.parametrize(
    "model", ["mobilenet_v3_small", *(pytest.param(m, marks=pytest.mark.slow) for m in ("resnet18", "googlenet"))]
)
@pytest.mark.parametrize(
    ("suffix", "classes", "drop"),
    [(".safetensors", 7, ()), (".pth", 1000, ("fc.", "classifier.3.", "aux1.", "aux2."))],
    ids=["other classes", "no head"],
)
def test_a_file_may_lack_its_head(tmp_path, model, suffix, classes, drop):
    network = library_model(model, num_classes=classes)
    encoder = load_encoder("torchvision", model, weights=write_weights(tmp_path / f"w{suffix}", network, drop))
    laws.assert_same_weights(encoder.network, network.state_dict())
    assert encoder.origin.digest() == hashlib.sha256((tmp_path / f"w{suffix}").read_bytes()).hexdigest()


def tiny_densenet():
    return torchvision.models.DenseNet(4, (1, 2, 1, 1), 8, num_classes=5)


def tiny_vit():
    return torchvision.models.VisionTransformer(32, 16, 2, 2, 8, 16, num_classes=5)


OLD_VIT = [(r"\.mlp\.0\.", ".mlp.linear_1."), (r"\.mlp\.3\.", ".mlp.linear_2.")]


def read_densenet(network, state):
    _load_state_dict(network, SimpleNamespace(get_state_dict=lambda **_: state), progress=False)


@pytest.mark.parametrize(
    ("model", "tiny", "names", "read"),
    [
        ("densenet121", tiny_densenet, [(r"(denselayer\d+\.(?:norm|relu|conv))([12]\.)", r"\1.\2")], read_densenet),
        ("vit_b_32", tiny_vit, OLD_VIT, nn.Module.load_state_dict),
    ],
)
def test_old_weight_names_are_read_like_torchvision(tmp_path, monkeypatch, model, tiny, names, read):
    state = {name: tensor for name, tensor in tiny().state_dict().items() if "batches" not in name}
    for new, old in names:
        old_state = {re.sub(new, old, name): tensor for name, tensor in state.items()}
        assert old_state.keys() != state.keys()
        state = old_state
    read(oracle := tiny(), dict(state))
    torch.save(state, tmp_path / "w.pth")
    monkeypatch.setattr(torchvision.models, "get_model", lambda *_, **__: tiny())
    laws.assert_same_weights(
        load(Request("torchvision", model, str(tmp_path / "w.pth"))).network, oracle.state_dict()
    )


@pytest.mark.parametrize("model", [m for m in MODELS if m.startswith("vit_")])
def test_the_vit_size_follows_the_weights(model, monkeypatch):
    # The size that torchvision's own builder uses, for every name of weights.
    sizes = []

    def build(name, *, weights, image_size):
        sizes.append(image_size)
        return nn.Sequential(nn.Linear(1, 1))

    monkeypatch.setattr(torchvision.models, "get_model", build)
    monkeypatch.setattr("attacks.encoders.families.torchvision_models._fetch", lambda weights: None)
    for weights in torchvision.models.get_model_weights(model):
        load(Request("torchvision", model, weights.name))
        assert sizes.pop() == weights.meta["min_size"][0]
    load(Request("torchvision", model, "random", {"size": 100, "crop": [96, 96]}))
    load(Request("torchvision", model, "random", {"size": 100, "crop": None}))
    assert sizes == [96, 100]


def test_every_url_ends_in_a_hash():
    offers = (weights for model in MODELS for weights in torchvision.models.get_model_weights(model))
    assert all(re.search(r"/[^/?]+-[0-9a-f]{8,}\.pth$", weights.url) for weights in offers)


@pytest.mark.slow
def test_the_preprocessing_is_that_of_the_named_weights(monkeypatch):
    monkeypatch.setattr("attacks.encoders.families.torchvision_models._fetch", lambda weights: None)
    for weights in torchvision.models.get_model_weights("resnet50"):
        encoder = load(Request("torchvision", "resnet50", weights.name))
        assert encoder.preprocess == preprocessing(weights.transforms())
    assert load(Request("torchvision", "resnet50")).preprocess.size == 232
    preprocess = load(Request("torchvision", "resnet50", "IMAGENET1K_V1", {"kernel": "cv2_area"})).preprocess
    assert (preprocess.kernel, preprocess.size) == ("cv2_area", 256)


@pytest.mark.parametrize(
    ("model", "near"), [("resnet19", "resnet18"), ("ResNet50", "resnet50"), ("vit", "vit_"), ("?", "resnet50")]
)
def test_an_unknown_model_is_refused_with_the_nearest_name(model, near):
    message = refusal(r"`encoder\.model` must be .*such as", model)
    assert near in message and message.count(",") <= 3


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of torch.hub, and the content of a download."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    answer = {"content": None}

    def urlopen(request):
        if answer["content"] is None:
            raise urllib.error.URLError("Name or service not known")
        reply = io.BytesIO(answer["content"])
        reply.info = lambda: SimpleNamespace(getheaders=lambda _: [str(len(answer["content"]))])
        return reply

    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    return answer


def test_a_failed_download_leaves_no_file_and_a_broken_file_is_refused(cache, tmp_path, capfd):
    for weights in (None, "pretrained", "IMAGENET1K_V1", "DEFAULT"):  # without a network
        message = r"weights ResNet18_Weights\.IMAGENET1K_V1.*could not be fetched.*Name or service"
        refusal(message, "resnet18", weights=weights)
        assert capfd.readouterr() == ("", "") and not list((tmp_path / "hub" / "checkpoints").iterdir())
    cache["content"] = b"something else"
    refusal(r"ResNet18_Weights.* is not that file \(invalid hash value .*\); try again", "resnet18")
    assert not list((tmp_path / "hub" / "checkpoints").iterdir())
    file = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.write_bytes(b"PK\x03\x04 half of it")
    assert str(file) in refusal("cannot be read|refused", "resnet18")


def test_a_download_is_read_without_running_it_and_reported_by_its_hash(cache, tmp_path, monkeypatch, capfd):
    network = library_model("squeezenet1_1")
    torch.save(network.state_dict(), buffer := io.BytesIO())
    cache["content"] = buffer.getvalue()
    digest = hashlib.sha256(cache["content"]).hexdigest()
    weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.value
    monkeypatch.setattr(weights, "url", f"https://a.b/models/squeezenet1_1-{digest[:8]}.pth")
    encoder = load_encoder("torchvision", "squeezenet1_1")
    laws.assert_same_weights(encoder.network, network.state_dict())
    assert encoder.origin.digest() == digest and encoder.origin.weights == "IMAGENET1K_V1"
    assert capfd.readouterr() == ("", "")
    cache["content"] = None  # the second load reads the cache
    assert load_encoder("torchvision", "squeezenet1_1").fingerprint() == encoder.fingerprint()
