"""Small encoders of 48 x 48 pictures with random weights: honest ones, and ones that are rigged before, inside or
after an honest network. None of them says whether it masks its gradient: `zoo` measures that.

Athalye et al. 2018 ("Obfuscated gradients") and Tramer et al. 2020 ("On adaptive attacks") describe most of the
families: shattered, stochastic and vanishing gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from kornia.filters import median_blur
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from attacks import load_encoder
from attacks.data.gallery import tiles
from attacks.perturbations.subspace import lowest

SIZE, FEATURES = 48, 32

Change = Callable[[Tensor], Tensor]


@cache
def zoo_pictures() -> Tensor:
    """Those over which embeddings have the mean zero."""
    return tiles(SIZE).spread(40).images


def no_change(x: Tensor) -> Tensor:
    return x


class Net(nn.Module):
    """The honest network within every rigged encoder, in three parts: `stem`, `body` and `head`, with something
    `before` the network, after its stem (`inside`) and `after` it. Its embedding has the mean zero over pictures."""

    def __init__(self, before: Change = no_change, inside: Change = no_change, after: Change = no_change) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Linear(32 * 16, FEATURES)
        self.before, self.inside, self.after = before, inside, after

    def forward(self, images: Tensor) -> Tensor:
        return self.after(self.head(self.body(self.inside(self.stem(self.before(images))))))


class Surrogate(torch.autograd.Function):
    """A value whose gradient is what a function makes of the incoming one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, backward: Change) -> Tensor:  # noqa: ARG004
        ctx.turn = backward
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.turn(grad), None, None


def passing(value: Change, backward: Change = no_change) -> Change:
    """The change with another gradient: by default straight through."""
    return lambda x: Surrogate.apply(x, value(x.detach()), backward)


def with_gradient(backward: Change) -> Change:
    return passing(no_change, backward)


@dataclass(frozen=True)
class RiggedEncoder:
    """An encoder, and `twins` from which a perturbation may come that fools it."""

    encoder: nn.Module
    twins: tuple[nn.Module, ...]


def net(seed: int = 0, /, **changes: Change) -> Net:
    """The honest network with its changes; the same weights for the same seed."""
    generator, network = torch.Generator().manual_seed(seed), Net(**changes).requires_grad_(False)
    for parameter in network.parameters():
        values = torch.randn(parameter.shape, generator=generator) * math.sqrt(2 / parameter[0].numel())
        parameter.copy_(values if parameter.dim() > 1 else torch.zeros_like(parameter))
    edges = cast(nn.Conv2d, network.stem[0]).weight
    edges.sub_(edges.mean((1, 2, 3), keepdim=True))  # else brightness outweighs all else
    embedding = network.head(network.body(network.stem(zoo_pictures())))
    network.head.bias.sub_(embedding.mean(0))
    return network.eval()


# Before the network.


def ripple(size: float, frequency: float) -> Change:
    return lambda x: x + size * torch.sin(frequency * x)


def rounding(levels: int) -> Change:
    return lambda x: (x * levels).round() / levels


def rounded_coefficients(step: float) -> Change:
    """Rounded coefficients of the cosine transform of blocks of 8 x 8."""
    basis = lowest(8, 8, torch.float64, torch.device("cpu"))

    def change(x: Tensor) -> Tensor:
        basis_of_dtype = basis.to(x)
        blocks = x.unflatten(2, (-1, 8)).unflatten(4, (-1, 8))  # N,C,a,8,b,8
        parts = torch.einsum("ui,ncaibj,vj->ncaubv", basis_of_dtype, blocks, basis_of_dtype)
        back = torch.einsum("ui,ncaubv,vj->ncaibj", basis_of_dtype, (parts / step).round() * step, basis_of_dtype)
        return back.flatten(4).flatten(2, 3)

    return change


def jitter(size: float) -> Change:
    return lambda x: x + size * torch.randn_like(x)


def fresh_resize(x: Tensor) -> Tensor:
    """To a random size, and back by padding at a random place (Xie et al. 2018)."""
    side = int(torch.randint(36, SIZE + 1, ()))
    top, left = (int(torch.randint(0, SIZE - side + 1, ())) for _ in range(2))
    small = F.interpolate(x, (side, side), mode="bilinear")
    return F.pad(small, (left, SIZE - side - left, top, SIZE - side - top), value=0.5)


def dither(levels: int) -> Change:
    """Rounded at a random threshold."""
    return lambda x: (x * levels + torch.rand_like(x) - 0.5).round() / levels


def lookup(x: Tensor) -> Tensor:
    """Each value by a table with a slight slope, which is the wrong way round within an entry."""
    return rounding(12)(x.detach()) - 0.1 * (x - rounding(12)(x.detach()))


def staircase(slope: float) -> Change:
    """Steps of a sixteenth, whose flats have a slope of their own."""
    return lambda x: rounding(16)(x.detach()) + slope * x


# Inside and after the network.


def winners(share: float) -> Change:
    """The largest of all activations of a picture, the others are zero (Xiao et al. 2020)."""

    def change(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        threshold_value = flat.topk(max(1, round(share * flat.shape[1])), dim=1).values[:, -1:]
        return torch.where(flat >= threshold_value, flat, 0).view_as(x)

    return change


def detach_features(share: float) -> Change:
    def change(x: Tensor) -> Tensor:
        first = round(share * x.shape[1])
        return torch.cat([x[:, :first].detach(), x[:, first:]], dim=1)

    return change


class Weak(nn.Module):
    """A detached encoder plus a weak branch that has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.strong, self.weak = net(), net(1)

    def forward(self, images: Tensor) -> Tensor:
        embedding: Tensor = self.strong(images).detach() + 0.05 * self.weak(images)
        return embedding


class HalfPrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            embedding: Tensor = self.inner(images)
        return embedding.to(images)


@cache
def rigged_encoders() -> dict[str, RiggedEncoder]:
    plain = net()

    def rig(place: str, change: Change, soft: Change | None = None) -> RiggedEncoder:
        return RiggedEncoder(net(**{place: change}), (plain, *([] if soft is None else [net(**{place: soft})])))

    before, inside, after = (partial(rig, place) for place in ("before", "inside", "after"))

    pool = nn.MaxPool2d(3, 1, 1)

    def steep(x: Tensor) -> Tensor:
        return torch.sigmoid(20 * (x - 0.5))

    rows = torch.arange(SIZE)
    checker = (rows[:, None] + rows) % 2

    return {
        "ripples 0.03 sin 400": before(ripple(0.03, 400)),
        "ripples 0.1 sin 100": before(ripple(0.1, 100)),
        "ripples 0.01 sin 2000": before(ripple(0.01, 2000)),
        "ripples 0.003 sin 100": before(ripple(0.003, 100)),
        "ripples in the features": after(lambda x: x + 0.5 * torch.sin(60 * x)),
        "rounding to 8 levels": before(rounding(8)),
        "rounding, straight through": before(passing(rounding(16))),
        "rounding, reversed gradient": before(passing(rounding(16), lambda g: -g)),
        "rounding, mirrored gradient": before(passing(rounding(16), lambda g: g.flip(-1))),
        "staircase, rising flats": before(staircase(0.02)),
        "staircase, falling flats": before(staircase(-0.02)),
        "lookup table": before(lookup),
        "threshold": before(lambda x: (x > 0.5).to(x), steep),
        "steep sigmoid": before(lambda x: torch.sigmoid(200 * (x - 0.5)), steep),
        "jpeg, no gradient": before(rounded_coefficients(0.3)),
        "jpeg, straight through": before(passing(rounded_coefficients(0.1))),
        "coarse jpeg, straight through": before(passing(rounded_coefficients(0.3))),
        "median filter": before(lambda x: median_blur(x, 3, "replicate"), lambda x: F.avg_pool2d(x, 3, 1, 1)),
        "fresh jitter": before(jitter(0.05)),
        "fresh resize": before(fresh_resize),
        "fresh dropout": inside(lambda x: F.dropout(x, 0.3, training=True)),
        "dither, straight through": before(passing(dither(8))),
        "dither, mirrored gradient": before(passing(dither(8), lambda g: g.flip(-1))),
        "gradient x 1e-12": before(with_gradient(lambda g: 1e-12 * g)),
        "gradient x 1e12": before(with_gradient(lambda g: 1e12 * g)),
        "gradient reversed": before(with_gradient(lambda g: -g)),
        "gradient of half of the pixels": before(with_gradient(lambda g: g * checker.to(g))),
        "gradient with noise": before(with_gradient(lambda g: g + 10 * g.std() * torch.randn_like(g))),
        "gradient's sign": before(with_gradient(torch.sign)),
        "gradient of one channel": before(with_gradient(lambda g: g * g.new_tensor([1.0, 0, 0])[:, None, None])),
        "weak branch": RiggedEncoder(Weak().eval(), (plain,)),
        "most features detached": after(detach_features(0.9)),
        "early pool, partly detached": inside(lambda x: detach_features(0.75)(pool(x)), pool),
        "winners take all, 10 %": inside(winners(0.1)),
        "winners take all, 2 %": inside(winners(0.02)),
        "rounded activations": inside(rounding(1)),
        "product of small and large": inside(lambda x: 1e9 * (1e-9 * x)),
        "softmax(1000 z)": after(lambda z: (1000 * z).softmax(1), lambda z: (2 * z).softmax(1)),
        "sigmoid(100 z)": after(lambda z: torch.sigmoid(100 * z)),
        "tanh(30 z)": after(lambda z: torch.tanh(30 * z)),
        "clamped features": after(lambda z: z.clamp(-0.05, 0.05)),
        "sign of the features": after(torch.sign),
        "embedding x 1e-12": after(lambda z: 1e-12 * z),
        "embedding x 1e12": after(lambda z: 1e12 * z),
        "bfloat16": RiggedEncoder(HalfPrecision().eval(), (plain,)),
    }


class Attention(nn.Module):
    """A vision transformer of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.place = nn.Parameter(0.1 * torch.randn(1, 36, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images - 0.5).flatten(2).transpose(1, 2) + self.place
        embedding: Tensor = self.layers(tokens).mean(1)
        return embedding


class Lambda(nn.Module):
    def __init__(self, function: Change) -> None:
        super().__init__()
        self.forward = function


def _convolutional(
    act: Callable[[], nn.Module], width: int = 16, pool: Callable[[], nn.Module] | None = None
) -> nn.Sequential:
    down = [nn.Conv2d(3, width, 5, 2, 2)] if pool is None else [nn.Conv2d(3, width, 5, 1, 2)]
    return nn.Sequential(
        *(*down, act(), *([] if pool is None else [pool()])),
        *(nn.Conv2d(width, 2 * width, 3, 2, 1), act(), nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        nn.Linear(32 * width, FEATURES),
    )


@cache
def honest() -> dict[str, nn.Module]:
    """All honest encoders by name, those with random weights less their mean embedding: all embeddings
    share one large part (what ReLUs leave is positive), and their cosines would stay near 1 whatever is done."""
    shrink = partial(F.interpolate, size=(32, 32), mode="bilinear", antialias=True)
    makers: dict[str, Callable[[], nn.Module]] = {
        "relu": lambda: _convolutional(nn.ReLU),
        "gelu": lambda: _convolutional(nn.GELU),
        "tanh": lambda: _convolutional(nn.Tanh),
        "half as wide": lambda: _convolutional(nn.ReLU, 8),
        "batch norm": lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()),
        ),
        "layer norm": lambda: nn.Sequential(
            nn.Conv2d(3, 16, 6, 6), nn.Flatten(), nn.LayerNorm(1024), nn.GELU(), nn.Linear(1024, FEATURES)
        ),
        "transformer": Attention,
        "residual": lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), BasicBlock(16, 16)),
            *(nn.Conv2d(16, 32, 3, 2, 1), BasicBlock(32, 32), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
            nn.Linear(128, FEATURES),
        ),
        # A stride of two after a blur (Zhang 2019).
        "antialiased": lambda: _convolutional(nn.ReLU, pool=lambda: Lambda(lambda x: F.avg_pool2d(x, 4, 2, 1))),
        "max pool": lambda: _convolutional(nn.ReLU, pool=lambda: nn.MaxPool2d(2)),
        "normalised input": lambda: nn.Sequential(Lambda(lambda x: (x - 0.45) / 0.25), _convolutional(nn.ReLU)),
        "resized input": lambda: nn.Sequential(Lambda(shrink), _convolutional(nn.ReLU)),
        "linear": lambda: nn.Sequential(nn.AvgPool2d(3), nn.Flatten(), nn.Linear(768, FEATURES)),
        "unit length": lambda: nn.Sequential(_convolutional(nn.SiLU), Lambda(partial(F.normalize, dim=1))),
    }
    network: dict[str, nn.Module] = {"pocket": load_encoder().requires_grad_(False)}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for seed, (name, make) in enumerate(makers.items()):
            torch.default_generator.manual_seed(seed)
            encoder = make().train()
            encoder(zoo_pictures())  # statistics of batch norm
            mean = encoder.eval().requires_grad_(False)(zoo_pictures()).mean(0)
            network[name] = nn.Sequential(encoder, Lambda(partial(torch.sub, other=mean))).eval()
    return network
