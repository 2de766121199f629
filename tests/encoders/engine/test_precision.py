"""TF32 is on in the passes of its encoder, and nowhere else. A CPU ignores it: values are those of float32."""

import pytest
import torch
from torch import nn

from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.precision import allow_tf32


def on():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Switches(torch.autograd.Function):
    """The identity, which notes the switches; its backward pass may run out of memory."""

    @staticmethod
    def forward(ctx, x, notes, fails):
        ctx.notes, ctx.fails = notes, fails
        notes.append(("forward", on()))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.notes.append(("backward", on()))
        if ctx.fails:
            raise torch.OutOfMemoryError("out of memory")
        return grad, None, None


class Network(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.body, self.notes, self.fails = nn.Linear(12, 5), [], fails

    def forward(self, x):
        layer = Switches.apply(self.body(x.flatten(1)), self.notes, self.fails)
        return {"embedding": layer.tanh(), "layers": (layer, layer.square())}


@pytest.fixture(autouse=True)
def switched_off():
    switches = on()
    allow_tf32(False)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches


def slope(encoder, outside, images):
    leaf = images.clone().requires_grad_()
    tree = encoder(Switches.apply(leaf * 2, outside, False))
    loss = tree["embedding"].sum() + tree["layers"][1].prod(1).sum()  # not of every feature
    return torch.autograd.grad(loss, leaf)[0]


def test_it_is_on_in_both_passes_of_the_encoder_alone_and_the_gradient_is_the_network_s():
    network, images, outside = Network().eval(), torch.rand(3, 3, 2, 2), []
    expected = slope(network, [], images)
    network.notes.clear()
    encoder = prepare(network, Decision(precision="tf32"))
    assert torch.equal(slope(encoder, outside, images), expected)
    assert encoder.run.notes == [("forward", (True, True)), ("backward", (True, True))]
    assert outside == [("forward", (False, False)), ("backward", (False, False))]
    with torch.no_grad():
        assert torch.equal(encoder(images)["embedding"], network(images)["embedding"])
    assert encoder.run.notes[-1] == ("forward", (True, True))
    assert network.notes == [("forward", (False, False))]
    assert on() == (False, False)


def test_it_is_off_after_a_pass_that_ran_out_of_memory():
    encoder = prepare(Network(fails=True).eval(), Decision(precision="tf32"))
    with pytest.raises(torch.OutOfMemoryError):
        slope(encoder, [], torch.rand(1, 3, 2, 2))
    assert on() == (False, False)
