"""An encoder whose output is the features of one or several of its layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.layers import OUTPUT, Layers, Pool, key_in_errors, layer_pools
from attacks.encoders.tree import PictureModule, optional
from transforms.doors import unchecked


class Features(PictureModule):
    """(N,3,H,W) in [0,1] -> (N,D): the features of named layers of an encoder in place of its own output.

    The features of one layer are returned unchanged. Those of several are scaled to unit length and concatenated, so
    the cosine of two outputs is the mean of the layers' cosines. The encoder's weights are frozen.

    Args:
        layers: names as `attacks.encoders.layers.named_layers` has them, or "output" for the encoder's own output,
            all pooled "flat"; or a mapping of names to "flat", "mean" or "cls".

    Raises:
        ValueError: an unknown name (with the nearest ones) or pool, an encoder in training mode, or one whose
            features are not compared by cosine.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Features
        >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()).eval()
        >>> images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> Features(encoder, {"0": "mean"})(images).shape
        torch.Size([2, 4])
        >>> both = Features(encoder, ["0", "output"])(images)
        >>> both.shape, torch.allclose(both.square().sum(1), torch.tensor([2.0, 2.0]))  # two layers of length 1
        (torch.Size([2, 288]), True)
    """

    def __init__(self, encoder: nn.Module, layers: Sequence[str] | Mapping[str, Pool]) -> None:
        super().__init__()
        if optional(encoder, "signature") is not None:
            raise ValueError(
                f"`layers`: a {type(encoder).__name__} defines how its features are compared, so it has no others"
            )
        self.layers = Layers(encoder, layers)
        self.pools, self.randomness = self.layers.pools, self.layers.randomness
        for name, pool in self.pools.items():
            if pool == "tokens":
                self.layers.close()
                raise ValueError(f"`layers`: {name} must become one row a picture: flat, mean or cls; got 'tokens'")
        self._widths = _Widths()
        self.eval().requires_grad_(False)

    @property
    def encoder(self) -> nn.Module:
        """The encoder whose layers these are."""
        return self.layers.encoder

    def forward(self, images: Tensor, **options: Any) -> Tensor:
        """Raises ValueError for a layer that did not run, has no such pool, or has rows of another length than
        before."""
        features: dict[str, Tensor] = unchecked(self.layers)(images, **options)
        if not torch.compiler.is_compiling():  # a graph is compiled for one size of picture
            for name in self.pools:
                width, first = features[name].shape[1], self._widths.setdefault(name, features[name].shape[1])
                if width != first:
                    raise ValueError(
                        f"layer `{name}` gives {width} numbers for a picture and gave {first} for one before: its "
                        f"size follows the picture's; {'leave it out' if name == OUTPUT else 'pool it by mean'}"
                    )
        parts = [features[name] for name in self.pools]
        return parts[0] if len(parts) == 1 else torch.cat([_unit(part) for part in parts], dim=1)

    def forget(self) -> None:
        """Forget the length of each layer's rows, after a trial with pictures of another size."""
        self._widths.clear()

    def __repr__(self) -> str:
        names = ", ".join(f"{name} ({pool})" for name, pool in self.pools.items())
        return f"{self.encoder!r}\n  {'features':<10} {names}"


def with_features(encoder: nn.Module, features: Sequence[str]) -> nn.Module:
    """The encoder with the features that a configuration names; unchanged where it names none."""
    if not features:
        return encoder
    with key_in_errors("encoder.features"):
        return Features(encoder, layer_pools(features, "encoder.features"))


class _Widths(dict[str, int]):
    """The length of each layer's rows in the first pass. Copies of an encoder share it, because their outputs are
    compared."""

    def __deepcopy__(self, memo: Any) -> "_Widths":
        return self


def _unit(row: Tensor) -> Tensor:
    """(N,D) with rows of length 1; a dead layer's zeros stay zeros, without a gradient. At least float32: the squares
    of many float16 numbers are beyond its range."""
    row = row.to(torch.promote_types(row.dtype, torch.float32))
    length = torch.linalg.vector_norm(row, dim=1, keepdim=True)
    return row / torch.where(length > 0, length, 1.0)
