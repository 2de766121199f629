"""torchvision's classification models, with the features that their classifier head reads."""

from __future__ import annotations

from typing import Any

import torchvision
from torch import nn
from torchvision.models import SqueezeNet
from torchvision.transforms import InterpolationMode

from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request, fetching, fill_from, unseen
from attacks.encoders.weights import fill

_KERNELS = {
    InterpolationMode.BILINEAR: "pil_bilinear",
    InterpolationMode.BICUBIC: "pil_bicubic",
    InterpolationMode.NEAREST: "pil_nearest",
    InterpolationMode.LANCZOS: "pil_lanczos",
}
#: As with pretrained weights, which want their own normalisation; and without the heads that only training uses.
_ARGUMENTS = {
    name: {"transform_input": True, "aux_logits": False, "init_weights": False}
    for name in ("googlenet", "inception_v3")
}


def load(request: Request) -> ImageEncoder:
    """`model` is a name of `torchvision.models`; `weights` "pretrained", "random", a name of its enum such as
    IMAGENET1K_V2, or a file of a state_dict, with the head or without.

    The features are what the last linear layer reads. The preprocessing is that of the weights; for a file and for
    random weights, that of the default ones.

    Raises:
        ValueError, FileNotFoundError: unknown model or weights, no network, a file that does not fit.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if request.model not in known:
        raise ValueError(f"`encoder.model` must be one of torchvision's ({', '.join(known)}); got {request.model!r}")
    enum: Any = torchvision.models.get_model_weights(request.model)
    offered = enum.DEFAULT
    own = request.weights == RANDOM or request.file is not None
    if not own and request.weights != PRETRAINED:
        if request.weights not in enum.__members__:
            names = ", ".join(enum.__members__)
            raise ValueError(
                f"`encoder.weights` of {request.model} must be {names}, pretrained, random or a file; got "
                f"{request.weights!r}"
            )
        offered = enum[request.weights]
    network: nn.Module = unseen(
        lambda: torchvision.models.get_model(request.model, weights=None, **_ARGUMENTS.get(request.model, {}))
    )
    surplus = (f"{_behead(network)}.", "AuxLogits.", "aux1.", "aux2.")
    if not fill_from(network, request, without=surplus):
        with fetching(f"the weights {offered} of torchvision"):
            state = offered.get_state_dict(progress=False, check_hash=True, weights_only=True)
        fill(network, state, f"weights {offered}", without=surplus)
    return ImageEncoder(network, preprocessing(offered.transforms()).replaced(request.preprocess), request.origin)


def preprocessing(preset: Any) -> Preprocess:
    """What a preset of torchvision's (`ImageClassification`) does to a picture."""
    (size,), (crop,) = preset.resize_size, preset.crop_size
    return Preprocess(
        size,
        _KERNELS[preset.interpolation],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        fit="cover",
        crop=(crop, crop),
    )


def _behead(network: nn.Module) -> str:
    """Let the features through where the classifier was; the name of what is gone."""
    if isinstance(network, SqueezeNet):  # its classifier is a convolution, and averages after it
        network.classifier = nn.AdaptiveAvgPool2d(1)
        return "classifier"
    head: str = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    network.set_submodule(head, nn.Identity())
    return head
