"""The configured encoder."""

import copy

import torch
from torch import nn

from attacks.encoders import Defended, Stochastic, load_encoder
from attacks.encoders.engine.own import FLOAT32, is_half, run_in
from attacks.encoders.features import featured
from attacks.encoders.stochastic import draws_by_view
from attacks.experiment.build.make import make
from attacks.experiment.build.pipeline import stages
from attacks.schema.encoder import DefenceConfig, EncoderConfig


def subject(
    node: EncoderConfig, device: torch.device, defence: DefenceConfig | None = None, module: nn.Module | None = None
) -> nn.Module:
    """The configured encoder behind its defence, unless that is one of the views. A `module` replaces the encoder,
    and is put in evaluation mode and frozen, or a copy of it where `encoder.precision` widens its weights. Raises
    ValueError or FileNotFoundError in one line."""
    if module is None:
        module = make(load_encoder, node, "encoder", name=node.name, device=str(device))
    else:
        widens = getattr(node, "precision", None) == FLOAT32 and is_half(module) is not None
        given = copy.deepcopy(module) if widens else module
        module = make(run_in, node, "encoder", encoder=given)
    encoder = make(featured, node, "encoder", encoder=module.eval().requires_grad_(False).to(device))
    if defence is not None and defence.stages and defence.before is None:
        encoder = Defended(encoder, stages(defence.stages, "defence.stages"))
    if node.stochastic:
        encoder = Stochastic(encoder)
        draws_by_view(encoder)
    return encoder
