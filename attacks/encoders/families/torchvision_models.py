"""torchvision's classification models: the features that their classifier head reads, or its logits."""

import dataclasses
import difflib
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import SqueezeNet

from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import PRETRAINED, Request, fetching, with_seed
from attacks.encoders.weights import fill, read_state

#: As for pretrained weights, which need their own normalisation; without the heads that only training uses.
_ARGUMENTS = {
    name: {"transform_input": True, "aux_logits": False, "init_weights": False}
    for name in ("googlenet", "inception_v3")
}
#: Older names in torchvision's own files: DenseNet's layers, and the MLPs of ViT.
_OLD_NAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)"), r"\1\2"),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_1\."), r"\g<1>0."),
    (re.compile(r"(encoder_layer_\d+\.mlp\.)linear_2\."), r"\g<1>3."),
)


def load(request: Request) -> ImageEncoder:
    """`model` is a name of `torchvision.models`; `weights` "pretrained", "random", a name of its enum such as
    IMAGENET1K_V2, or a file of a state_dict, with the head or without.

    The features are what the last linear layer reads; `output` "logits" is the whole network's answer. The
    preprocessing is that of the weights; for a file and for random weights, that of the default ones. A ViT is built
    for pictures as large as its preprocessing leaves them.

    Use: a classifier of torchvision, by its features.
    Not: embeddings that were trained to be compared: `open_clip`, `transformers`.
    Source: torchvision.
    Oracle: torchvision's own transform and network, tests/encoders/families/test_torchvision.py.
    With: encoder.model=resnet50
    """
    names = torchvision.models.list_models(module=torchvision.models)
    if request.model not in names:
        near = difflib.get_close_matches(request.model.lower(), names) or ["resnet50", "vit_b_16", "convnext_tiny"]
        raise ValueError(
            f"`encoder.model` must be a classification model of torchvision's, such as {', '.join(near)}; got "
            f"{request.model!r}"
        )
    enum: Any = torchvision.models.get_model_weights(request.model)
    weights = enum.DEFAULT
    file = request.file
    if not request.needs_no_download and request.weights != PRETRAINED:
        if request.weights not in enum.__members__:
            names = ", ".join(enum.__members__)
            raise ValueError(
                f"`encoder.weights` of {request.model} must be {names}, pretrained, random or a file; got "
                f"{request.weights!r}"
            )
        weights = enum[request.weights]
    preprocess = preprocessing(weights.transforms()).replace(request.preprocess)
    arguments = _ARGUMENTS.get(request.model, {}) | _side(request.model, preprocess)
    try:
        network: nn.Module = with_seed(lambda: torchvision.models.get_model(request.model, weights=None, **arguments))
    except AssertionError as error:
        raise ValueError(f"`encoder.preprocess` gives {request.model} a size that it cannot have: {error}") from None
    surplus = ("AuxLogits.", "aux1.", "aux2.") + (() if request.has_head else (f"{_behead(network)}.",))
    if not request.needs_no_download:
        file = _fetch(weights)
    if file is not None:
        state = read_state(file)
        for old, new in _OLD_NAMES:
            state = {old.sub(new, name): tensor for name, tensor in state.items()}
        fill(network, state, f"weights `{file}`", ignore=surplus)
    name = request.weights if request.needs_no_download else weights.name
    return ImageEncoder(network, preprocess, dataclasses.replace(request.origin, weights=name, file=file))


def preprocessing(preset: Any) -> Preprocess:
    """What a preset of torchvision's (`ImageClassification`) does to a picture."""
    (size,), (crop,) = preset.resize_size, preset.crop_size
    mean, std = tuple(preset.mean), tuple(preset.std)
    return Preprocess(size, f"pil_{preset.interpolation.value}", mean, std, fit="cover", crop=(crop, crop))


def _side(model: str, preprocess: Preprocess) -> dict[str, int]:
    """The size of the pictures of a ViT, which fixes the number of its position embeddings."""
    return {"image_size": preprocess.frame[0]} if model.startswith("vit_") and preprocess.frame else {}


def _fetch(weights: Any) -> Path:
    """The file of torchvision's weights in torch's cache, downloaded if missing, with its hash checked.
    (torchvision's own function unpickles the file.)"""
    file: Path = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    if not file.exists():
        digest = file.stem.rpartition("-")[2]
        with fetching(f"the weights {weights} of torchvision"):
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                torch.hub.download_url_to_file(weights.url, str(file), digest, progress=sys.stderr.isatty())
            except RuntimeError as error:
                raise ValueError(
                    f"weights {weights}: what came from {weights.url} is not that file ({error}); try again"
                ) from None
    return file


def _behead(network: nn.Module) -> str:
    """Replace the classifier by the identity. Returns its name."""
    if isinstance(network, SqueezeNet):  # its classifier is a convolution, and averages after it
        network.classifier = nn.AdaptiveAvgPool2d(1)
        return "classifier"
    head: str = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    network.set_submodule(head, nn.Identity())
    return head
