"""The encoder under test, as a configuration names it, and how a report names it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attacks.choices_encoder import Subject
from attacks.encoders import POCKET_WEIGHTS, ImageEncoder, Pocket, load_encoder
from attacks.encoders.weights import fingerprint
from attacks.files import sha256

#: Keys of a schema that `load_encoder` takes.
_KEYS = ("model", "weights", "preprocess", "pool")


def subject(node: Subject, device: torch.device) -> nn.Module:
    """The encoder. Raises ValueError or FileNotFoundError in one line."""
    given = {key: getattr(node, key) for key in _KEYS if hasattr(node, key)}
    return load_encoder(node.name, device=str(device), **given)


def identity(node: Subject, encoder: nn.Module) -> dict[str, Any]:
    """What says which encoder it was: for manifest.json. `sha256` is that of the file of weights, if they are one;
    `fingerprint` that of the tensors, the same wherever they came from."""
    said: dict[str, Any] = {"name": node.name, "sha256": None, "fingerprint": fingerprint(encoder)}
    if isinstance(encoder, ImageEncoder):
        origin = encoder.origin
        said |= {"sha256": origin.digest(), "model": origin.model, "weights": origin.weights}
        said["preprocess"] = dict(encoder.preprocess.lines())
    elif isinstance(encoder, Pocket):
        said["sha256"] = sha256(getattr(node, "weights", None) or POCKET_WEIGHTS)
    return said
