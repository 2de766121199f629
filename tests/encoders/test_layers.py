"""Features from inside an encoder, against torchvision's extraction and against the layers called directly."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer, resnet18
from torchvision.models.feature_extraction import create_feature_extractor

from attacks import EOT, PGD, Away, Linf, Toward, attack, load_encoder
from attacks.data.gallery import tiles
from attacks.encoders.batch_norm import norm_hook
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.fold import foldable
from attacks.encoders.layers import Layers
from attacks.encoders.phash import Phash
from attacks.objectives.composite import Each

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


def first_tokens(vit, images):
    """The output of the first block of a ViT, step by step."""
    x = vit._process_input(images)
    x = torch.cat([vit.class_token.expand(len(x), -1, -1), x], dim=1) + vit.encoder.pos_embedding
    return vit.encoder.layers[0](x)


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


@pytest.mark.parametrize(
    ("pool", "oracle"),
    [
        ("tokens", lambda x: x),
        ("cls", lambda x: x[:, 0]),
        ("mean", lambda x: x.mean(1)),
        ("flat", lambda x: x.flatten(1)),
    ],
)
def test_vit_tokens_are_pooled_as_requested(vit, images, pool, oracle):
    with Layers(vit, {BLOCK: pool}) as layers:
        torch.testing.assert_close(layers(images)[BLOCK], oracle(first_tokens(vit, images)))


def test_the_first_of_several_output_tensors_is_used(vit, images):
    name = f"{BLOCK}.self_attention"
    block = vit.get_submodule(BLOCK)
    x = vit._process_input(images)
    x = block.ln_1(torch.cat([vit.class_token.expand(3, -1, -1), x], dim=1) + vit.encoder.pos_embedding)
    with Layers(vit, {name: "tokens"}) as layers:
        torch.testing.assert_close(layers(images)[name], block.self_attention(x, x, x, need_weights=False)[0])


def test_gradients_flow_through_a_layer(resnet, images):
    leaf = images.clone().requires_grad_()
    with Layers(resnet, {"layer2": "mean"}) as layers:
        (ours,) = torch.autograd.grad(layers(leaf)["layer2"].square().sum(), leaf)
    deep = nn.Sequential(resnet.conv1, resnet.bn1, nn.ReLU(), resnet.maxpool, resnet.layer1, resnet.layer2)
    (theirs,) = torch.autograd.grad(deep(leaf).mean((2, 3)).square().sum(), leaf)
    torch.testing.assert_close(ours, theirs)


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
    with pytest.raises(ValueError, match="closed"):
        layers(pictures)


def test_features_are_released_and_hooks_removed_after_an_error(resnet, images):
    with pytest.raises(RuntimeError, match="channels"), Layers(resnet, ["layer1"]) as layers:
        layers(images)
        resnet(images)  # a direct call with the hooks registered
        layers(torch.rand(2, 5, 32, 32))
    assert all(tap.features is None and tap.rows is None for tap in layers._taps)
    assert hooks(resnet) == 0


def test_a_deep_copy_has_its_own_hooks(resnet, images):
    with Layers(resnet, ["layer1", "layer2"]) as layers:
        twin = copy.deepcopy(layers)
        expected = layers(images)
        with torch.no_grad():
            twin.encoder.layer2[1].bn2.weight.add_(1)
        features = twin(images)
        assert torch.equal(features["layer1"], expected["layer1"])
        assert not torch.equal(features["layer2"], expected["layer2"])
        twin.close()
        assert hooks(twin) == 0
        assert hooks(resnet) == 2
        assert torch.equal(layers(images)["layer2"], expected["layer2"])


@pytest.mark.parametrize(
    "decision",
    [Decision(fold=True), Decision(layout="channels_last"), Decision(fold=True, layout="channels_last")],
    ids=["fold", "layout", "both"],
)
def test_an_engine_preserves_layer_features(resnet, images, decision):
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
    with pytest.raises(ValueError, match=message):
        Layers(resnet, layers)
    assert hooks(resnet) == 0


def test_an_encoder_without_named_layers_or_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"no 'bits'; it has no named layers, only 'output', its own answer$"):
        Layers(Phash(), ["bits"])
    with Layers(Phash(), ["output"]) as layers:
        assert list(layers(torch.rand(2, 3, 40, 40))) == ["output"]

    with pytest.raises(ValueError, match=r"training mode.*\.eval\(\)"):
        Layers(Sequence(), ["first"])


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


# --- an objective for each layer ---


def trees(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(4, d, dtype=torch.float64, generator=generator) for name, d in (("a", 5), ("b", 9))}


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("kind", [Away, Toward])
def test_each_is_the_weighted_mean_of_relative_losses(kind, metric):
    features, anchor = trees(0), trees(1)
    sign = 1 if kind is Away else -1

    def single_loss(name):
        if metric == "cosine":
            return sign * F.cosine_similarity(features[name], anchor[name])
        return -sign * (features[name] - anchor[name]).norm(dim=1) / anchor[name].norm(dim=1)

    objective, scale = Each({"a": 3.0, "b": 1.0}, kind(metric)), {"a": 1e3, "b": 1.0}
    losses = objective(features, anchor)
    torch.testing.assert_close(losses, 0.75 * single_loss("a") + 0.25 * single_loss("b"), rtol=1e-12, atol=0)
    larger = ({name: scale[name] * part for name, part in tree.items()} for tree in (features, anchor))
    torch.testing.assert_close(objective(*larger), losses, rtol=1e-12, atol=0)  # independent of the scale of a layer


def test_each_gradcheck_with_a_zero_anchor_layer():
    anchor = trees(1) | {"b": torch.zeros(4, 9, dtype=torch.float64)}
    objective = Each({"a": 1.0, "b": 1.0}, Away("l2"))

    def loss(a, b):
        return objective({"a": a, "b": b}, anchor)

    assert torch.autograd.gradcheck(loss, [part.requires_grad_() for part in trees(0).values()])


def test_a_missing_layer_is_refused():
    with pytest.raises(ValueError, match="`features` must be a mapping with 'c' in it; got a, b"):
        Each({"c": 1.0}, Away())(trees(0), trees(1))
