"""The encoder under test, as a configuration names it, and how a report names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
import torch
from torch import nn
from attacks.schema.encoder import Defence, Subject
from attacks.encoders.loading import (
    POCKET_WEIGHTS,
    Defended,
    ImageEncoder,
    Pocket,
    Preprocess,
    Stochastic,
    load_encoder,
)
from attacks.encoders.families.plugins import package_of
from attacks.encoders.stochastic import draws_by_view
from attacks.encoders.weights import fingerprint
from attacks.encoders.features import featured
from attacks.runtime.files import sha256
from attacks.encoders.layers import unwrapped
from attacks.experiment.build.pipeline import stages
from attacks.encoders.randomness import randomness_of
from attacks.encoders.description import _KEYS



def subject(
    node: Subject, device: torch.device, defence: Defence | None = None, module: nn.Module | None = None
) -> nn.Module:
    """The encoder, behind its defence; a `module` in the place of what the configuration names is put in evaluation
    mode and frozen. Raises ValueError or FileNotFoundError in one line."""
    given = {key: getattr(node, key) for key in _KEYS if hasattr(node, key)}
    if module is None:
        module = load_encoder(node.name, device=str(device), **given)
    found = featured(module.eval().requires_grad_(False).to(device), node.features)
    if defence is not None and defence.stages:
        found = Defended(found, stages(defence.stages, "defence.stages"))
    if node.stochastic:
        found = Stochastic(found)
        draws_by_view(found)
    return found
