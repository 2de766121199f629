"""The features of layers as an encoder, the names of layers, and their listing."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer
from torchvision.models.feature_extraction import create_feature_extractor

from attacks import load_encoder
from attacks.encoders import Features, ImageEncoder, Layers, Preprocess, layer_shapes, named_layers
from attacks.encoders.description import identity
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.features import with_features
from attacks.encoders.image_encoder import Origin
from attacks.encoders.layers import layer_listing, visits
from attacks.encoders.phash import Phash
from attacks.schema.encoder import PocketConfig
from tests.encoders.test_layers import hooks, resnet
from tests.helpers.dressed import pulled
from tests.helpers.runs import call

PAIR = {"layer2": "mean", "layer4.1.conv2": "flat"}


__all__ = ["resnet"]  # a fixture


@pytest.fixture(scope="module")
def encoder(resnet):
    preprocess = Preprocess(32, "pil_bilinear", (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
    return ImageEncoder(resnet, preprocess, Origin("test", "resnet18", "random"))


@pytest.fixture
def images():
    return torch.rand(4, 3, 40, 48)


def test_layer_names_are_those_of_the_library(encoder, resnet):
    names = [name for name, _ in resnet.named_modules() if name]
    for wrapper in (encoder, Layers(encoder, ["layer1"]), Features(encoder, ["layer1"]), resnet):
        assert list(named_layers(wrapper)) == names
        assert named_layers(wrapper)["layer3"] is resnet.layer3
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    vit = VisionTransformer(image_size=32, patch_size=8, num_classes=5, **sizes)
    assert "encoder.layers.encoder_layer_0" in named_layers(vit)  # a submodule called `encoder` is an ordinary layer


def test_the_cosine_of_several_layers_is_the_mean_of_their_cosines(encoder, images):
    single = [Features(encoder, {name: pool})(images).double() for name, pool in PAIR.items()]
    pair_rows = Features(encoder, PAIR)(images).double()
    expected = sum(F.cosine_similarity(rows[:2], rows[2:]) for rows in single) / 2
    torch.testing.assert_close(F.cosine_similarity(pair_rows[:2], pair_rows[2:]), expected, rtol=0, atol=1e-6)
    assert pair_rows.shape == (4, 128 + 512)
    assert not any(weight.requires_grad for weight in Features(encoder, PAIR).parameters())
    torch.testing.assert_close(pair_rows.square().sum(1), torch.full((4,), 2.0).double())


def test_a_zero_layer_gives_zero_features_and_zero_gradient():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 6)).double().eval()
    nn.init.zeros_(network[0].weight), nn.init.zeros_(network[0].bias)
    leaf = torch.rand(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    answer = Features(network, ["0", "2"])(leaf)
    (grad,) = torch.autograd.grad(answer.sum(), leaf)
    assert answer.isfinite().all() and (answer[:, : 4 * 36] == 0).all() and (grad == 0).all()


@pytest.mark.parametrize(
    ("decision", "near", "slope"),
    [
        (Decision(fold=True), 1e-4, 1e-2),
        (Decision(layout="channels_last"), 1e-4, 1e-2),
        (Decision(precision="mixed"), 1e-6, 0.1),
        (Decision(precision="bfloat16"), 0.05, 0.8),
    ],
    ids=["fold", "layout", "mixed", "half"],
)
def test_an_engine_preserves_features_and_gradients(encoder, images, decision, near, slope):
    features = Features(encoder, PAIR)
    run = prepare(features, decision)

    for ours, expected, limit in zip(pulled(run, images), pulled(features, images), (near, slope), strict=True):
        assert (ours - expected).norm() < limit * expected.norm()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
def test_features_can_be_compiled(images):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()
    features = Features(network, {"0": "mean", "2": "flat"})
    graph = torch.compile(copy.deepcopy(features), dynamic=False, backend="eager", fullgraph=True)
    torch.testing.assert_close(graph(images), features(images))
    torch.testing.assert_close(graph(images.flip(0)), features(images.flip(0)))


def test_a_layer_whose_size_depends_on_the_picture_is_refused(images):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    features = Features(network, ["0"])
    twin = copy.deepcopy(features)  # as made by an engine; its feature sizes are compared with the original
    features(images)
    with pytest.raises(ValueError, match=r"layer `0` gives 1176 numbers .* gave 6992 .* pool it by mean"):
        twin(images[..., :23, :16])
    mean = Features(network, {"0": "mean"})
    assert mean(images).shape == mean(images[..., :23, :16]).shape


WRONG = {
    "unknown": (["layre3"], "the encoder has no 'layre3'; did you mean layer3, "),
    "inner name": (["network.layer3"], "has no 'network.layer3'"),
    "tokens": (["layer3:tokens"], "layer3 must become one row a picture: flat, mean or cls; got 'tokens'"),
    "pool": (["layer3:max"], "the pool of layer3 must be one of flat, mean, cls, tokens; got 'max'"),
    "duplicate": (["layer3", "layer3:mean"], "may name a layer once; got layer3 twice"),
}


@pytest.mark.parametrize(("layers", "message"), WRONG.values(), ids=WRONG)
def test_invalid_features_are_refused_with_their_key(encoder, layers, message):
    count = hooks(encoder)
    with pytest.raises(ValueError, match=f"^`encoder.features`.*{message}") as error:
        with_features(encoder, layers)
    assert "\n" not in str(error.value)
    assert hooks(encoder) == count
    with pytest.raises(ValueError, match="a Phash defines how its features are compared"):
        Features(Phash(), ["output"])


def test_the_manifest_identifies_the_inner_encoder():
    encoder = load_encoder()
    facts = identity(PocketConfig(features=["head"]), with_features(encoder, ["head"]))
    assert facts.pop("features") == ["head"]
    assert facts == identity(PocketConfig(), encoder)


# --- listings of layers ---


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu, self.idle, self.parts, self.mapping = nn.ReLU(), nn.Linear(2, 2), Parts(), Mapping()
        self.last = nn.Sequential(nn.Flatten(), nn.Flatten())

    def forward(self, images):
        self.mapping(images)
        return self.last(self.relu(self.relu(self.parts(images)[0])))


class Parts(nn.Module):
    def forward(self, images):
        return images - 0.5, images


class Mapping(nn.Module):
    def forward(self, images):
        return {"shape": images.shape}


def test_layer_shapes_equal_the_outputs(encoder, resnet, images):
    names = ["conv1", "layer1", "layer3.0.downsample.1", "avgpool"]
    theirs, count = create_feature_extractor(resnet, names)(encoder.preprocess(images)), hooks(encoder)
    shapes = layer_shapes(encoder, images)
    assert {name: shapes[name] for name in names} == {name: tuple(theirs[name].shape) for name in names}
    assert list(shapes) == [*named_layers(encoder), "output"]
    assert shapes["output"] == encoder(images).shape
    assert hooks(encoder) == count


def test_repeated_unused_and_composite_layers_are_marked_in_the_listing():
    image = torch.rand(1, 3, 4, 5)
    records = {visit.name: visit for visit in visits(Odd().eval(), image)}
    assert (records["relu"].calls, records["idle"].calls, records["parts"].answer) == (2, 0, "2 parts")
    assert records["last"].alias == records["last.1"].alias == records["output"].alias == "last.0"
    assert list(layer_shapes(Odd().eval(), image)) == ["relu", "parts", "last", "last.0", "last.1", "output"]
    lines = dict(line.split(maxsplit=1) for line in layer_listing(Odd().eval(), image).split("\n\n")[-1].splitlines())
    assert lines["relu"].endswith("(1,3,4,5), the last of 2 calls")
    assert lines["idle"].endswith("was not called")
    assert lines["parts"].endswith("(1,3,4,5), the first of 2 parts")
    assert lines["mapping"].endswith("a dict, no row for each picture, so no features")


def test_an_output_changed_in_place_is_not_an_alias(resnet):
    records = {visit.name: visit for visit in visits(resnet, torch.rand(1, 3, 32, 32))}
    assert records["relu"].alias is None  # torchvision's ReLU overwrites the output of bn1
    assert records["layer1"].alias == records["layer1.1"].alias is not None


@pytest.mark.slow
def test_show_encoder_starts_no_run_and_writes_no_files(monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, "config=smoke", "show=layers", f"hydra.run.dir={tmp_path}") == 1
    assert capsys.readouterr().err == "error: `show` must be encoder, or null for a run; got 'layers'\n"
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "config=smoke", "show=encoder", "encoder.features=[stages.5:mean,head]") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "Pocket("
    assert any(line.split() == ["stages.8", "_Residual", "(1,112,4,4)"] for line in output)
    assert output[-1].split() == ["output", "Features", f"(1,{80 + 128})"]
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_a_run_attacks_the_given_layers(monkeypatch, tmp_path):
    short = ["config=smoke", "data.count=1", "attack.steps=2", "evaluate.views=4", f"hydra.run.dir={tmp_path}"]
    assert call(monkeypatch, *short, "encoder.features=[stages.5:mean,stages.8]") == 0
    manifest, metrics = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("manifest", "metrics"))
    assert manifest["encoder"]["features"] == ["stages.5:mean", "stages.8"]
    arms = metrics["arms"]
    assert arms["eot"]["cosine"]["mean"] < arms["noise"]["cosine"]["mean"]
