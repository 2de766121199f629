"""The encoder under test, as a configuration names it, and how a report names it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from attacks.choices_encoder import Defence, Subject
from attacks.encoders import POCKET_WEIGHTS, Defended, ImageEncoder, Pocket, Stochastic, load_encoder
from attacks.encoders.stochastic import draws_by_view
from attacks.encoders.weights import fingerprint
from attacks.features import featured
from attacks.files import sha256
from attacks.layers import unwrapped
from attacks.pipelines import stages

#: Keys of a schema that `load_encoder` takes.
_KEYS = ("model", "weights", "preprocess", "pool")


def subject(node: Subject, device: torch.device, defence: Defence | None = None) -> nn.Module:
    """The encoder, behind its defence. Raises ValueError or FileNotFoundError in one line."""
    given = {key: getattr(node, key) for key in _KEYS if hasattr(node, key)}
    found = featured(load_encoder(node.name, device=str(device), **given), node.features)
    if defence is not None and defence.stages:
        found = Defended(found, stages(defence.stages, "defence.stages"))
    if node.stochastic:
        found = Stochastic(found)
        draws_by_view(found)
    return found


def identity(node: Subject, encoder: nn.Module) -> dict[str, Any]:
    """What says which encoder it was: for manifest.json. `sha256` is that of the file of weights, if they are one;
    `fingerprint` that of the tensors, the same wherever they came from; `defence` the stages before it."""
    outer = encoder.encoder if isinstance(encoder, Stochastic) else encoder
    defence = list(map(repr, outer.stages.stages)) if isinstance(outer, Defended) else []
    encoder = unwrapped(encoder)
    said: dict[str, Any] = {"name": node.name, "sha256": None, "fingerprint": fingerprint(encoder)}
    said |= {"defence": defence, "stochastic": node.stochastic}
    if isinstance(encoder, ImageEncoder):
        origin = encoder.origin
        said |= {"sha256": origin.digest(), "fingerprint": encoder.fingerprint()}  # as `print(encoder)` shows it
        said |= {"model": origin.model, "weights": origin.weights, "preprocess": asdict(encoder.preprocess)}
    elif isinstance(encoder, Pocket):
        said["sha256"] = sha256(getattr(node, "weights", None) or POCKET_WEIGHTS)
    return said | ({"features": list(node.features)} if node.features else {})
