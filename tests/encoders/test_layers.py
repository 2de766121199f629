"""Features from inside an encoder, against torchvision's extraction and the layers themselves; their listing."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer, resnet18
from torchvision.models.feature_extraction import create_feature_extractor

from attacks import EOT, PGD, Away, Linf, attack, load_encoder
from attacks.data.gallery import tiles
from attacks.encoders import Features, ImageEncoder, Layers, Preprocess, layer_shapes, named_layers
from attacks.encoders.description import identity
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.batch_norm import foldable, norm_hook
from attacks.encoders.features import with_features
from attacks.encoders.image_encoder import Origin
from attacks.encoders.layers import layer_listing, visits
from attacks.encoders.phash import Phash
from attacks.objectives.composite import Each
from attacks.schema.encoder import PocketConfig
from tests.helpers.decoration import with_gradient
from tests.helpers.runs import call
from tests.helpers.wrong import refused

BLOCK = "encoder.layers.encoder_layer_0"


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return resnet18(weights=None).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return VisionTransformer(image_size=32, patch_size=8, num_classes=5, **sizes).eval().requires_grad_(False)


@pytest.fixture
def images():
    return torch.rand(3, 3, 32, 32)


def hooks(module):
    """The number of hooks, without those that an attack registers on batch norms."""
    forward = [hook for m in module.modules() for hook in m._forward_hooks.values() if hook is not norm_hook]
    return len(forward) + sum(len(m._forward_pre_hooks) for m in module.modules())


def test_resnet_layers_equal_torchvision_feature_extraction(resnet, images):
    names = {f"layer{i}": f"layer{i}" for i in range(1, 5)}
    theirs = create_feature_extractor(resnet, names)(images)
    with Layers(resnet, list(names)) as flat, Layers(resnet, dict.fromkeys(names, "mean")) as mean:
        features, means = flat(images), mean(images)
    assert list(features) == [*names, "output"]
    for name in names:
        assert torch.equal(features[name], theirs[name].flatten(1))
        torch.testing.assert_close(means[name], theirs[name].mean((2, 3)), rtol=1e-5, atol=1e-6)
    assert torch.equal(features["output"], resnet(images))


def test_an_output_is_copied_before_the_next_layer_changes_it_in_place(resnet, images):
    # torchvision's ReLU overwrites the output of the batch norm before it.
    plain = resnet.bn1(resnet.conv1(images))
    assert (plain < 0).any()
    with Layers(resnet, {"bn1": "flat"}) as flat, Layers(resnet, {"bn1": "tokens"}) as tokens:
        assert torch.equal(flat(images)["bn1"], plain.flatten(1))
        assert torch.equal(tokens(images)["bn1"], plain.flatten(2).transpose(1, 2))


def test_vit_tokens_are_pooled_as_requested_and_of_several_tensors_the_first_is_used(vit, images):
    """Against the first block, step by step."""
    name, block = f"{BLOCK}.self_attention", vit.get_submodule(BLOCK)
    x = torch.cat([vit.class_token.expand(3, -1, -1), vit._process_input(images)], dim=1) + vit.encoder.pos_embedding
    y = block(x)
    for pool, expected in {"tokens": y, "cls": y[:, 0], "mean": y.mean(1), "flat": y.flatten(1)}.items():
        with Layers(vit, {BLOCK: pool}) as layers:
            torch.testing.assert_close(layers(images)[BLOCK], expected)
    x = block.ln_1(x)
    with Layers(vit, {name: "tokens"}) as layers:
        torch.testing.assert_close(layers(images)[name], block.self_attention(x, x, x, need_weights=False)[0])


def test_gradients_flow_through_a_layer(resnet, images):
    leaf = images.clone().requires_grad_()
    with Layers(resnet, {"layer2": "mean"}) as layers:
        (ours,) = torch.autograd.grad(layers(leaf)["layer2"].square().sum(), leaf)
    deep = nn.Sequential(resnet.conv1, resnet.bn1, nn.ReLU(), resnet.maxpool, resnet.layer1, resnet.layer2)
    (theirs,) = torch.autograd.grad(deep(leaf).mean((2, 3)).square().sum(), leaf)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("pool", ["flat", "tokens", "cls"])
def test_the_gradient_at_an_inner_layer_is_that_of_finite_differences(vit, pool):
    """A plain hook moves the layer's output; a layer before one that works in place, too."""
    places = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 5, 3), nn.Softplus(), nn.Flatten())
    network, name = (places.eval(), "0") if pool != "cls" else (vit, BLOCK)
    network, leaf = copy.deepcopy(network).double(), torch.rand(2, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    with Layers(network, {name: pool}) as layers:
        features = layers(leaf)
        loss = features["output"].square().sum()
        at_layer, at_input = torch.autograd.grad(loss, (features[name], leaf))
    move = torch.randn_like(at_layer)

    def moved(by):
        def shift(_module, _inputs, output):
            change = by * move
            if pool == "cls":
                return output + nn.functional.pad(change[:, None], (0, 0, 0, output.shape[1] - 1))
            return output + (change if pool == "flat" else change.transpose(1, 2)).reshape(output.shape)

        handle = network.get_submodule(name).register_forward_hook(shift)
        try:
            return network(leaf).square().sum()
        finally:
            handle.remove()

    slope = (moved(1e-6) - moved(-1e-6)).item() / 2e-6
    assert slope == pytest.approx((at_layer * move).sum().item(), rel=1e-5)
    assert torch.equal(at_input, torch.autograd.grad(moved(0), leaf)[0])


def test_one_hook_per_layer_only_during_an_attack(images):
    encoder, pictures = load_encoder(), tiles(96).images[:2]
    calls = []
    encoder.head.register_forward_hook(lambda *_: calls.append(1))
    count = hooks(encoder)
    with Layers(encoder, ["stages.2", "stages.5"]) as layers:
        assert hooks(encoder) == count + 2
        anchor, calls[:] = layers(pictures), []
        objective = Each({"stages.2": 1.0, "stages.5": 2.0}, Away())
        parts = {"perturbation": Linf(8 / 255), "optimiser": PGD(), "eot": EOT(views=1), "steps": 6}
        counts = []
        for _ in attack(pictures, anchor, encoder=layers, objective=objective, **parts):
            assert hooks(encoder) == count + 2
            counts.append(len(calls))
        assert [b - a for a, b in itertools.pairwise(counts)] == [1] * 5  # the encoder runs once for all layers
    assert hooks(encoder) == count
    refused("closed", layers, pictures)


def test_features_are_released_and_hooks_removed_after_an_error(resnet, images):
    with pytest.raises(RuntimeError, match="channels"), Layers(resnet, ["layer1"]) as layers:
        layers(images)
        resnet(images)  # a direct call with the hooks registered
        layers(torch.rand(2, 5, 32, 32))
    assert all(tap.features is None and tap.rows is None for tap in layers._taps)
    assert hooks(resnet) == 0


def test_an_engine_preserves_layer_features(resnet, images):
    decision = Decision(fold=True, layout="channels_last")
    # A batch norm whose output is wanted must not be folded.
    norms = foldable(resnet)
    with Layers(resnet, ["bn1", "layer1", "layer4.1.bn2"]) as layers:
        assert foldable(layers) == norms - 2 > 0
        expected, run_features = layers(images), prepare(layers, decision)(images)
        for name, features in expected.items():
            torch.testing.assert_close(run_features[name], features, rtol=1e-3, atol=1e-4)
        assert hooks(resnet) == 3


class Sequence(nn.Module):
    """Tokens as (T,N,D), as in the original code of CLIP."""

    def __init__(self):
        super().__init__()
        self.swap, self.idle, self.map = nn.Flatten(2), nn.Identity(), nn.ReLU()
        self.first = nn.Linear(3, 4)

    def forward(self, images):
        return self.first(self.swap(self.map(images)).permute(2, 0, 1)).mean(0)


@pytest.mark.parametrize(
    ("layers", "message"), [(["@"], "no '@'; it has conv1, bn1, relu, .* in all"), ([], "at least one layer")]
)
def test_unknown_and_empty_layers_are_refused(resnet, layers, message):
    refused(message, Layers, resnet, layers)
    assert hooks(resnet) == 0


def test_an_encoder_without_named_layers_or_in_training_mode_is_refused():
    refused(r"no 'bits'; it has no named layers, only 'output', its own answer$", Layers, Phash(), ["bits"])
    with Layers(Phash(), ["output"]) as layers:
        assert list(layers(torch.rand(2, 3, 40, 40))) == ["output"]
    refused(r"training mode.*\.eval\(\)", Layers, Sequence(), ["first"])


@pytest.mark.parametrize(
    ("layer", "pool", "message"),
    [
        ("first", "flat", r"row for each of 3 images; got shape \(1024, 3, 4\)"),
        ("idle", "flat", "`idle` took no part"),
        ("output", "cls", r"no tokens to pool by cls: it gives \(3, 4\)"),
        ("map", "cls", "no first token"),
    ],
)
def test_unsuitable_layer_outputs_are_refused(images, layer, pool, message):
    with Layers(Sequence().eval(), {layer: pool}) as layers, pytest.raises(ValueError, match=message):
        layers(images)


# --- the features of layers as an encoder ---

PAIR = {"layer2": "mean", "layer4.1.conv2": "flat"}


@pytest.fixture(scope="module")
def encoder(resnet):
    preprocess = Preprocess(32, "pil_bilinear", (0.5, 0.5, 0.5), (0.3, 0.3, 0.3))
    return ImageEncoder(resnet, preprocess, Origin("test", "resnet18", "random"))


@pytest.fixture
def pictures():
    return torch.rand(4, 3, 40, 48)


def test_layer_names_are_those_of_the_library(encoder, resnet):
    names = [name for name, _ in resnet.named_modules() if name]
    for wrapper in (encoder, Layers(encoder, ["layer1"]), Features(encoder, ["layer1"]), resnet):
        assert list(named_layers(wrapper)) == names
        assert named_layers(wrapper)["layer3"] is resnet.layer3
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    vit = VisionTransformer(image_size=32, patch_size=8, num_classes=5, **sizes)
    assert "encoder.layers.encoder_layer_0" in named_layers(vit)  # a submodule called `encoder` is an ordinary layer


def test_the_cosine_of_several_layers_is_the_mean_of_their_cosines(encoder, pictures):
    single = [Features(encoder, {name: pool})(pictures).double() for name, pool in PAIR.items()]
    pair_rows = Features(encoder, PAIR)(pictures).double()
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


def test_an_engine_preserves_features_and_gradients(encoder, pictures):
    features = Features(encoder, PAIR)
    run = prepare(features, Decision(precision="bfloat16"))
    for ours, expected, limit in zip(
        with_gradient(run, pictures), with_gradient(features, pictures), (0.05, 0.8), strict=True
    ):
        assert (ours - expected).norm() < limit * expected.norm()


def test_a_layer_whose_size_depends_on_the_picture_is_refused(pictures):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    features = Features(network, ["0"])
    twin = copy.deepcopy(features)  # as made by an engine; its feature sizes are compared with the original
    features(pictures)
    refused(r"layer `0` gives 1176 numbers .* gave 6992 .* pool it by mean", twin, pictures[..., :23, :16])
    mean = Features(network, {"0": "mean"})
    assert mean(pictures).shape == mean(pictures[..., :23, :16]).shape


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
    refused(f"^`encoder.features`.*{message}", with_features, encoder, layers)
    assert hooks(encoder) == count
    refused("a Phash defines how its features are compared", Features, Phash(), ["output"])


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

    def forward(self, pictures):
        self.mapping(pictures)
        return self.last(self.relu(self.relu(self.parts(pictures)[0])))


class Parts(nn.Module):
    def forward(self, pictures):
        return pictures - 0.5, pictures


class Mapping(nn.Module):
    def forward(self, pictures):
        return {"shape": pictures.shape}


def test_layer_shapes_equal_the_outputs(encoder, resnet, pictures):
    names = ["conv1", "layer1", "layer3.0.downsample.1", "avgpool"]
    theirs, count = create_feature_extractor(resnet, names)(encoder.preprocess(pictures)), hooks(encoder)
    shapes = layer_shapes(encoder, pictures)
    assert {name: shapes[name] for name in names} == {name: tuple(theirs[name].shape) for name in names}
    assert list(shapes) == [*named_layers(encoder), "output"]
    assert shapes["output"] == encoder(pictures).shape
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
    assert capsys.readouterr().err == "error: `show` must be encoder or plan, or null for a run; got 'layers'\n"
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "config=smoke", "show=encoder", "encoder.features=[stages.5:mean,head]") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "Pocket("
    assert any(line.split() == ["stages.8", "_Residual", "(1,112,4,4)"] for line in output)
    assert output[-1].split() == ["output", "Features", f"(1,{80 + 128})"]
    assert not list(tmp_path.iterdir())
