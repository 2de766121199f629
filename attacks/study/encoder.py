"""The configured encoder."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attacks.encoders import Counterattack, Defended, Panel, ScoreEncoder, Stochastic, load_encoder
from attacks.encoders.black_box.asked import BlackBox, black_box, function
from attacks.encoders.black_box.command import command
from attacks.encoders.black_box.endpoint import endpoint
from attacks.encoders.engine.native_precision import FLOAT32, is_half, run_in
from attacks.encoders.features import with_features
from attacks.encoders.stochastic import draws_by_view
from attacks.encoders.tree import refuse_unready
from attacks.schema.encoder import PARTICULAR, PROGRAMS, CounterattackConfig, DefenceConfig
from attacks.schema.run import Run
from attacks.schema.task import ScoreConfig
from attacks.schema.validate import fraction
from attacks.study.make import declared_class, make
from attacks.study.pipeline import stages
from attacks.study.plugin_parts import plugin_part

#: Encoders that can only be asked, by name.
BLACK_BOXES: dict[str, Callable[..., BlackBox]] = {"callable": function, "command": command, "http": endpoint}


def surrogate(text: str, device: torch.device, key: str = "optimiser.surrogate") -> nn.Module:
    """The encoder that `pocket`, `phash` or `family:model` names, the value of a `key`. Raises ValueError."""
    name, _, model = text.partition(":")
    if name in PROGRAMS or name == "plugin":
        raise ValueError(f"`{key}` must be pocket, phash or family:model, no program; got {text!r}")
    try:
        return load_encoder(name, model or None, device=str(device))
    except ValueError as error:
        raise ValueError(f"`{key}`: {error}") from None


def subject_encoder(run: Run, device: torch.device, module: nn.Module | None = None) -> nn.Module:
    """The configured encoder behind its defence, unless that is one of the views, with the score of its task. A
    `module` replaces the encoder, and is put in evaluation mode and frozen, or a copy of it where
    `encoder.precision` widens its weights. Raises ValueError or FileNotFoundError in one line."""
    node = run.encoder
    if module is None:
        if node.name in BLACK_BOXES:
            module = make(BLACK_BOXES[node.name], node, "encoder")
        else:
            keys = {key: getattr(node, key) for key in PARTICULAR if hasattr(node, key)}
            module = make(load_encoder, node, "encoder", name=node.name, device=str(device), **keys)
    else:
        widens = getattr(node, "precision", None) == FLOAT32 and is_half(module) is not None
        network = copy.deepcopy(module) if widens else module
        module = make(run_in, node, "encoder", encoder=network)
    refuse_unready(module)
    encoder = make(with_features, node, "encoder", encoder=module.eval().requires_grad_(False).to(device))
    if isinstance(run.task, ScoreConfig):
        if (box := black_box(encoder)) is not None:
            box.must_answer = True
        encoder = make(ScoreEncoder, run.task, "task", encoder=encoder)
    encoder = behind_defence(encoder, run.defence)
    if node.stochastic:
        encoder = Stochastic(encoder)
        draws_by_view(encoder)
    return encoder


def behind_defence(encoder: nn.Module, node: Any) -> nn.Module:
    """An encoder behind the defence of a configuration, unless that is one of the views. Raises ValueError."""
    if isinstance(node, CounterattackConfig):
        lengths = {key: fraction(getattr(node, key), f"defence.{key}") for key in ("eps", "step")}
        return make(Counterattack, node, "defence", encoder=encoder, **lengths)
    made_stages = stages(node.stages, "defence.stages")
    if isinstance(node, DefenceConfig):
        return Defended(encoder, made_stages) if made_stages and node.before is None else encoder
    if node.name == "plugin":
        rule = make(plugin_part, node, "defence", group="defence")
    else:
        rule = make(declared_class("defence", node.name), node, "defence")
    return make(Panel, node, "defence", encoder=encoder, rule=rule, stages=made_stages)
