"""Encoders by name. Each carries its own preprocessing, in the graph."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from attacks.encoders.phash import Phash, bits
from attacks.encoders.pocket import Pocket, untrained
from attacks.encoders.weights import load_weights

POCKET_WEIGHTS = Path(__file__).parents[1] / "data" / "pocket.safetensors"

__all__ = ["POCKET_WEIGHTS", "Phash", "Pocket", "bits", "load_encoder", "untrained"]


def load_encoder(name: str = "pocket", *, weights: str | Path | None = None, device: str = "cpu") -> nn.Module:
    """An encoder in evaluation mode with frozen weights: (N,3,H,W) in [0,1] -> (N,D).

    Args:
        name: "pocket", the encoder that ships with the package; "phash", a perceptual hash, which has no weights.
        weights: a safetensors file of the same architecture; None for the shipped one.
        device: where it runs.

    Raises:
        ValueError, FileNotFoundError: unknown name, or weights that do not fit.
    """
    if name == "phash":
        if weights is not None:
            raise ValueError(f"`weights` is for encoders that have some; phash has none, got {str(weights)!r}")
        return Phash().to(device)
    if name != "pocket":
        raise ValueError(
            f"`encoder` must be one of pocket, phash; got {name!r} (any module may be passed to `attack` itself)"
        )
    encoder = untrained()
    load_weights(encoder, POCKET_WEIGHTS if weights is None else weights)
    return encoder.eval().requires_grad_(False).to(device)
