"""Small encoders with dropout of every kind that the libraries have."""

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import StochasticDepth

double = torch.float64


class DropPath(nn.Module):
    """As in timm: a row is dropped, or scaled up."""

    drop_prob = 0.4

    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty(len(x), *(1,) * (x.dim() - 1)).bernoulli_(0.6).div_(0.6)


class PatchDropout(nn.Module):
    """As in timm: some of the tokens, in a random order."""

    prob = 0.5

    def forward(self, x):
        if not self.training:
            return x
        indices = torch.randn(len(x), x.shape[1], device=x.device).argsort(1)[:, :3]
        return x.gather(1, indices[..., None].expand(-1, -1, x.shape[2])).repeat(1, 2, 1)


class Attention(nn.Module):
    """As in timm: it drops weights if the module itself is in training mode."""

    def __init__(self):
        super().__init__()
        self.attn_drop = nn.Dropout(0.3)

    def forward(self, x):
        x, p = x[:, None], self.attn_drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p)[:, 0]


class TorchAttention(nn.Module):
    """Attention of torch, with or without its weights as output."""

    def __init__(self, weights):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), weights

    def forward(self, x):
        return self.inner(x, x, x, need_weights=self.weights)[0]


class DropNoise(nn.Module):
    """Other random operations."""

    p = 0.1

    def forward(self, x):
        if not self.training:
            return x
        noise = torch.rand_like(x) + torch.randn_like(x) + torch.rand(x.shape, dtype=x.dtype, device=x.device)
        noise = noise + torch.empty_like(x).uniform_(1, 2) + torch.empty_like(x).normal_(1, 2)
        return x + noise + torch.bernoulli(torch.full_like(x, 0.5)) + torch.native_dropout(x, 0.5, True)[0]


KINDS = {
    "dropout": lambda: nn.Dropout(0.3),
    "dropout1d": lambda: nn.Dropout1d(0.3),
    "alpha": lambda: nn.AlphaDropout(0.3),
    "drop path": DropPath,
    "patch dropout": PatchDropout,
    "stochastic depth": lambda: StochasticDepth(0.4, "row"),
    "attention": Attention,
    "torch attention": lambda: TorchAttention(False),
    "torch attention, weights": lambda: TorchAttention(True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "noise": DropNoise,
}


class Tokens(nn.Module):
    """Pictures (N,3,8,16) to six tokens of eight numbers, then a layer, then flattened."""

    def __init__(self, layer, dtype=double):
        super().__init__()
        self.first, self.layer = nn.Conv2d(3, 8, (4, 5), (4, 5)), layer
        self.to(dtype).eval().requires_grad_(False)

    def forward(self, images):
        return self.layer(self.first(images).flatten(2).mT).flatten(1).tanh()


def plain(dtype=torch.float32, p=0.3):
    """A small smooth encoder for pictures (N,3,12,14)."""
    layers = [nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.Tanh(), nn.Dropout2d(p), nn.Flatten(), nn.Dropout(p)]
    net = nn.Sequential(*layers, nn.Linear(6 * 5 * 6, 8)).to(dtype)
    net[1].running_mean.normal_()
    return net.eval().requires_grad_(False)


def pictures(n=3, dtype=double, size=(8, 16)):
    return 0.1 + 0.8 * torch.rand(n, 3, *size, dtype=dtype)
