"""An engine changes how an encoder runs, not what it computes."""

import json

import pytest
import torch
from torch import nn

from attacks import load_encoder
from attacks.encoders.engine import Decision, prepare
from tests.helpers.decoration import resnet, with_gradient


def test_decision_round_trip():
    decision = Decision("channels_last", "bfloat16", fold=True, chunk=8)
    assert Decision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision
    settings = dict(text.removeprefix("engine.").split("=") for text in decision.settings())
    texts = {"layout": "channels_last", "precision": "bfloat16", "fold": "true", "chunk": "8"}
    assert settings == texts


WRONG = [("layout", "NHWC"), ("precision", "float16"), ("fold", 1), ("fold", "no"), ("chunk", 0), ("chunk", True)]


@pytest.mark.parametrize(("name", "value"), [*WRONG, ("compile", False)])
def test_decision_refuses_invalid_values(name, value):
    with pytest.raises(ValueError, match=f"`{name}` (must be|is no setting)"):
        Decision.from_dict({name: value})


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["mixed", "float32", "bfloat16"])
def test_the_given_encoder_is_never_changed(precision):
    encoder = resnet()
    encoder.conv1.weight.requires_grad_()
    original = {name: t.clone() for name, t in encoder.state_dict().items()}
    kinds = [type(m) for m in encoder.modules()]
    assert prepare(encoder, Decision(chunk=3)) is encoder
    with_gradient(prepare(encoder, Decision("channels_last", precision, fold=True)), torch.rand(1, 3, 32, 32))
    state = encoder.state_dict()
    assert original.keys() == state.keys()
    for name, tensor in original.items():
        assert torch.equal(tensor, state[name])
        assert tensor.dtype == state[name].dtype
        assert tensor.stride() == state[name].stride()
    assert [type(m) for m in encoder.modules()] == kinds
    assert not any(m.training or m._forward_pre_hooks for m in encoder.modules())
    assert encoder.conv1.weight.requires_grad
    assert not torch.is_autocast_enabled("cpu")


def convolution(**settings):
    return nn.Conv2d(4, 6, **{"kernel_size": 3, **settings})


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize(
    "layer",
    [
        convolution(stride=2, padding=1),
        convolution(dilation=2, padding=(2, 0), bias=False),
        convolution(groups=2, padding="valid"),
        convolution(padding="same", dilation=3),
        convolution(kernel_size=(3, 5), padding="same"),
        convolution(kernel_size=4, padding="same"),
        nn.Linear(9, 7),
        nn.Linear(9, 7, bias=False),
    ],
    ids=str,
)
def test_mixed_rounds_no_forward_pass(layer, layout):
    layer = nn.Sequential(layer).eval().requires_grad_(False)
    run = prepare(layer, Decision(layout, "mixed"))
    images = torch.rand(2, 4, 9, 9)
    exact, rounded = with_gradient(layer, images), with_gradient(run, images)
    error = (rounded[1] - exact[1]).norm() / exact[1].norm()
    with torch.no_grad():
        features = run(images)
    plain = prepare(layer, Decision(layout))(images)
    assert torch.equal(rounded[0], plain)
    assert torch.equal(features, plain)
    assert 0 < float(error) < 0.01


def test_mixed_does_not_replace_other_padding_modes():
    layer = nn.Sequential(convolution(padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(486, 3)).eval()
    images = torch.rand(1, 4, 9, 9)
    run = prepare(layer, Decision(precision="mixed"))
    assert type(run.run[0]) is nn.Conv2d
    assert torch.equal(with_gradient(run, images)[0], with_gradient(layer, images)[0])


def test_the_preprocessing_is_not_rounded():
    dtypes = []

    class Dtypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = torch.ones(4, 4) @ x  # autocast would round a product
            dtypes.append(x.dtype)
            x = self.head(x)
            dtypes.append(x.dtype)
            dtypes.append((torch.ones(4, 4) @ x).dtype)
            return x.flatten(1)

    prepare(Dtypes().eval(), Decision(precision="bfloat16"))(torch.rand(1, 3, 4, 4))
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16]


MODULE = "=.* needs an encoder that is an nn.Module"
UNSUPPORTED = {
    "fold": (lambda images: images, Decision(fold=True), f"engine.fold{MODULE}"),
    "mixed": (lambda images: images, Decision(precision="mixed"), f"engine.precision{MODULE}"),
    "no layer": (nn.Flatten().eval(), Decision(precision="bfloat16"), "needs a layer of nn"),
    "half": (nn.Linear(2, 2).half().eval(), Decision(precision="mixed"), "must be float32 .*in float16"),
    "training": (nn.Linear(2, 2), Decision(fold=True), "training mode"),
}


@pytest.mark.parametrize(("encoder", "decision", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_decisions_are_refused(encoder, decision, message):
    with pytest.raises(ValueError, match=message):
        prepare(encoder, decision)


#: How far features and gradients may be from float32, relatively. Rounding the backward pass alone has the smaller
#: error: a ReLU that flips in the forward pass is an error of the whole size of its gradient.
ERRORS = {
    "layout": (Decision("channels_last"), 1e-5, 1e-3),
    "mixed": (Decision(precision="mixed"), 0.0, 0.01),
    "bfloat16": (Decision(precision="bfloat16"), 0.02, 0.15),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_of_a_decision_has_a_bound_and_no_other_dtype(name):
    encoder, images = load_encoder(), torch.rand(4, 3, 128, 128)
    decision, *limits = ERRORS[name]
    for result, exact, limit in zip(
        with_gradient(prepare(encoder, decision), images),
        with_gradient(encoder, images),
        limits,
        strict=True,
    ):
        assert result.dtype == torch.float32 and (result - exact).norm() <= limit * exact.norm()
        assert name == "layout" or limit == 0 or not torch.equal(result, exact)
    wide = encoder.double() if name != "bfloat16" else encoder
    results = with_gradient(prepare(wide, decision), images.double())
    assert {result.dtype for result in results} == {torch.float64}
    if name != "mixed":  # of a plain callable too
        weight = torch.rand(2, 12)
        linear = prepare(lambda pictures: pictures.flatten(1) @ weight.T, decision)
        features = linear(images[..., :2, :2])
        torch.testing.assert_close(features, images[..., :2, :2].flatten(1) @ weight.T, rtol=0.02, atol=0.02)
