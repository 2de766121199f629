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
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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


UNSUPPORTED = {
    "fold": (lambda images: images, Decision(fold=True), "engine.fold=true.* needs an encoder that is an nn.Module"),
    "no layer": (nn.Flatten().eval(), Decision(precision="bfloat16"), "needs a layer of nn"),
    "half": (nn.Linear(2, 2).half().eval(), Decision(precision="bfloat16"), "must be float32 .*in float16"),
    "training": (nn.Linear(2, 2), Decision(fold=True), "training mode"),
}


@pytest.mark.parametrize(("encoder", "decision", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_decisions_are_refused(encoder, decision, message):
    with pytest.raises(ValueError, match=message):
        prepare(encoder, decision)


#: How far features and gradients may be from float32, relatively: a ReLU that flips in the forward pass is an error
#: of the whole size of its gradient.
ERRORS = {
    "layout": (Decision("channels_last"), 1e-5, 1e-3),
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
        assert name == "layout" or not torch.equal(result, exact)
    wide = encoder.double() if name != "bfloat16" else encoder
    results = with_gradient(prepare(wide, decision), images.double())
    assert {result.dtype for result in results} == {torch.float64}
    weight = torch.rand(2, 12)
    linear = prepare(lambda pictures: pictures.flatten(1) @ weight.T, decision)  # a plain callable too
    features = linear(images[..., :2, :2])
    torch.testing.assert_close(features, images[..., :2, :2].flatten(1) @ weight.T, rtol=0.02, atol=0.02)
