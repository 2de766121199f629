"""The pocket encoder: a small real network that ships with the package, for instance retrieval at 96x96. How it was
made, and its clean numbers: docs/pocket-encoder.md."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.preprocess import Preprocess, preprocess_pictures
from attacks.encoders.tree import PictureModule


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class _Residual(nn.Module):
    """Two 3x3 convolutions and a bridge (He et al. 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = _conv(channels, channels, 3, 1), _conv(channels, channels, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


#: The channels of the stem and of the three stages, of the shipped file.
WIDTHS = (32, 48, 80, 112)
#: The most channels that a file may ask for.
WIDEST = 1024


class Pocket(PictureModule):
    """(N,3,H,W) in [0,1], any size -> (N,128); compare embeddings by cosine.

    Use: a first run, tests, and studies that take minutes.
    Not: a statement about any other encoder: it is small and was trained on no photograph.
    Source: this project's own, of residual blocks (He et al. 2016).
    Oracle: recognition and the attack, tests/encoders/test_pocket.py.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Pocket
        >>> Pocket(widths=(4, 4, 4, 4), dims=16).eval()(torch.zeros(2, 3, 100, 120)).shape
        torch.Size([2, 16])
    """

    preprocess = Preprocess(96, "pil_bilinear", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))

    def __init__(self, widths: tuple[int, int, int, int] = WIDTHS, dims: int = 128) -> None:
        super().__init__()
        first, second, third, fourth = widths
        self.stem = _conv(3, first, 5, 3)
        self.stages = nn.Sequential(
            *(_conv(first, second, 3, 2), nn.ReLU(), _Residual(second)),
            *(_conv(second, third, 3, 2), nn.ReLU(), _Residual(third)),
            *(_conv(third, fourth, 3, 2), nn.ReLU(), _Residual(fourth)),
        )
        self.head = nn.Linear(16 * fourth, dims)  # keeps the 4x4 layout: a picture is known by where things are

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(F.relu(self.stem(preprocess_pictures(self.preprocess, images))))
        embedding: Tensor = self.head(x.flatten(1))
        return embedding


def untrained(seed: int = 0, widths: tuple[int, int, int, int] = WIDTHS) -> Pocket:
    """A pocket encoder with random weights, the same for the same seed.

    Examples:
        >>> import torch
        >>> from attacks.encoders import untrained
        >>> first, same, other = (untrained(seed, widths=(4, 4, 4, 4)).head.weight for seed in (0, 0, 1))
        >>> torch.equal(first, same), torch.equal(first, other)
        (True, False)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Pocket(widths)


def read_widths(state: Mapping[str, Tensor]) -> tuple[int, int, int, int]:
    """The channels of the pocket encoder with this state; `WIDTHS` where a tensor of a stage is missing or too wide,
    for the error of weights that do not fit."""
    tensors = [state.get(f"{name}.0.weight") for name in ("stem", "stages.0", "stages.3", "stages.6")]
    first, second, third, fourth = (0 if tensor is None or tensor.ndim != 4 else len(tensor) for tensor in tensors)
    widths = first, second, third, fourth
    return widths if all(0 < width <= WIDEST for width in widths) else WIDTHS
