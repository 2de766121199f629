"""A batch norm's gradient for one picture is that of the same picture among others; it is folded only where the
result stays."""

import copy

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, Away, attack
from attacks.encoders import Preprocess, with_preprocess
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.batch_norm import foldable
from attacks.encoders.loading import load_encoder
from tests.helpers.decoration import resnet, with_gradient, with_statistics
from transforms import Compose


class Conv2dThrice(nn.Module):
    """A convolution that feeds a batch norm alone, one that feeds two consumers, and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, bias=False), nn.Conv2d(8, 8, 1)
        self.na, self.nb, self.nc = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.head, self.nh = nn.Linear(8, 5), nn.BatchNorm1d(5)

    def forward(self, x):
        x = self.na(self.a(x)).relu()
        y = self.b(x)
        y = self.nb(y) + y
        y = self.nc(self.c(self.c(y)))
        return self.nh(self.head(y.mean((2, 3))))


def lite():
    """With a convolution and a batch norm of timm's, which torch has not."""
    torch.manual_seed(0)
    return with_statistics(pytest.importorskip("timm").create_model("tf_efficientnet_lite0", num_classes=0))


@pytest.mark.parametrize(
    ("make", "count", "size"),
    [
        (resnet, 20, 64),
        pytest.param(load_encoder, 10, 128, marks=pytest.mark.slow),
        pytest.param(lite, 49, 64, marks=pytest.mark.families),
    ],
)
def test_folding_is_exact_in_double_precision(make, count, size):
    encoder = make().double()
    assert foldable(encoder) == count
    images = torch.rand(2, 3, size, size, dtype=torch.float64)
    run = prepare(encoder, Decision(fold=True))
    for mine, exact in zip(with_gradient(run, images), with_gradient(encoder, images), strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, exact, rtol=1e-9, atol=1e-12)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in run.run.modules())


def test_only_layers_with_a_single_consumer_are_folded():
    encoder = with_statistics(Conv2dThrice()).double()
    assert foldable(encoder) == 2  # a, and the linear head
    run = prepare(encoder, Decision(fold=True))
    assert isinstance(run.run.nb, nn.BatchNorm2d) and isinstance(run.run.nc, nn.BatchNorm2d)
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(with_gradient(run, images), with_gradient(encoder, images))


class Untraceable(nn.Module):
    """Control flow that depends on values."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_shared_layers_are_not_folded_where_tracing_fails():
    conv = nn.Conv2d(3, 3, 1)
    parts = [conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)]
    encoder = with_statistics(nn.Sequential(Untraceable(), *parts)).double()
    assert foldable(encoder) == 1
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(prepare(encoder, Decision(fold=True))(images), encoder(images))


def test_shared_hooked_and_training_layers_are_not_folded():
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    assert foldable(nn.Sequential(conv, norm, nn.ReLU(), conv, norm).eval()) == 0
    assert foldable(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))) == 0
    sequence = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).eval()
    assert foldable(sequence) == 1
    sequence[0].register_forward_hook(lambda *_: None)
    assert foldable(sequence) == 0


def test_a_norm_of_another_axis_is_refused():
    encoder = with_statistics(nn.Sequential(nn.Flatten(2), nn.Linear(16, 3), nn.BatchNorm1d(3)))
    encoder(torch.rand(1, 3, 4, 4))  # normalises the three channels, not the three outputs
    with pytest.raises(ValueError, match=r"engine\.fold=false"):
        prepare(encoder, Decision(fold=True))(torch.rand(1, 3, 4, 4))


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
