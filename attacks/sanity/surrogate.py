"""Another encoder of the same make, for an attack that must be weaker."""

from __future__ import annotations

import copy

import torch
from torch import nn


def redrawn(module: nn.Module, seed: int) -> nn.Module | None:
    """A copy that has learned nothing: each parameter's values in a random order, so that every layer keeps the
    size of its weights. None where there are fewer than two values to change places."""
    other, generator = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    parameters = [parameter for parameter in other.parameters() if parameter.numel() > 1]
    if not parameters:
        return None
    with torch.no_grad():
        for parameter in parameters:
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].reshape(parameter.shape))
    return other.requires_grad_(False)
