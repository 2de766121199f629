"""A batch norm's gradient for one picture is that of the same picture among others."""

import copy

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, Away, attack
from attacks.encoders import Preprocess, with_preprocess
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.batch_norm import foldable
from tests.helpers.decoration import with_gradient
from transforms import Compose


class Tokens(nn.Module):
    """A stem of convolutions, whose map becomes tokens."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(), nn.Conv2d(8, 6, 3))
        self.norm, self.head = nn.BatchNorm2d(6), nn.Linear(6, 6)

    def forward(self, x):
        tokens = self.norm(self.stem(x)).flatten(2).transpose(1, 2)
        return (tokens + torch.tanh(self.head(tokens))).flatten(1)


def encoder():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Tokens().double()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_var, 0.5, 2)
    return with_preprocess(network, Preprocess(12, "pil_bilinear", (0.5,) * 3, (0.5,) * 3))


@pytest.mark.parametrize(
    "decision", [Decision(), Decision(layout="channels_last"), Decision(fold=True)], ids=["plain", "layout", "fold"]
)
def test_the_gradient_of_a_picture_does_not_depend_on_the_batch(decision):
    subject = encoder()
    pictures = torch.rand(2, 3, 16, 14, generator=torch.Generator().manual_seed(0)).double()
    _, batch_gradient = with_gradient(subject, pictures)
    for run in (prepare(subject, decision), prepare(copy.deepcopy(subject), decision)):
        single_gradient = torch.cat([with_gradient(run, picture[None])[1] for picture in pictures])
        torch.testing.assert_close(single_gradient, batch_gradient, rtol=1e-9, atol=1e-12)


def test_the_hook_is_registered_once_and_allows_folding():
    subject = encoder()
    twin = with_preprocess(subject.network, subject.preprocess)
    assert [len(norm._forward_hooks) for norm in (twin.network.norm, twin.network.stem[1])] == [1, 1]
    assert foldable(twin) == foldable(Tokens().eval()) > 0


def test_a_bare_module_has_the_hook_only_during_an_attack():
    """Two pictures attacked one at a time take the same step as together."""
    bare = copy.deepcopy(encoder().network)
    for norm in bare.modules():
        norm._forward_hooks.clear()
    images = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0)).double()
    anchor = bare(images)
    parts = {"encoder": bare, "objective": Away(), "perturbation": L2(0.5), "optimiser": PGD(), "steps": 1}
    first, second = (next(attack(images, anchor, eot=EOT(Compose(), chunk=chunk), **parts)) for chunk in (1, 2))
    torch.testing.assert_close(first.estimate.grad, second.estimate.grad, rtol=1e-9, atol=1e-12)
    assert not any(norm._forward_hooks for norm in bare.modules())
