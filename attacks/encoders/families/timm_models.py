"""timm's models: the pooled features that the classifier reads, or its logits."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from attacks.encoders.families.folders import FOLDER, check_name, saved_folder, set_size
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Fit, Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request, fetching, first_line, with_seed
from attacks.encoders.weights import fill, read_state
from attacks.runtime.extras import extra

#: The names of the weights in a folder that timm has saved (`save_for_hf`, or a copy of a repository of the hub).
_FILES = ("model.safetensors", "pytorch_model.bin")
_FITS: dict[str, Fit] = {"squash": "squash", "border": "contain"}


def load(request: Request) -> ImageEncoder:
    """`model` is a name of `timm.list_models()`, with the tag of its weights or without (resnet50.a1_in1k), or
    local-dir: and a folder; `weights` "pretrained", "random", a tag, or a file of timm's own names, with the head or
    without.

    The features are those of `num_classes=0`; `output` "logits" is the classifier's answer. The preprocessing is that
    of the weights, or of the model's default ones. A model of fixed size is changed to another one of `preprocess` by
    its `set_input_size`.

    Use: the many backbones of timm, DINOv2 among them.
    Not: text towers: `open_clip`.
    Source: timm.
    Oracle: timm's own transform and network, tests/encoders/families/test_timm.py.
    With: encoder.model=vit_small_patch14_dinov2.lvd142m
    """
    timm = extra("timm")
    if request.model.startswith(FOLDER):
        network, request = _of_folder(timm, request)
    else:
        network = _of_name(timm, request)
    if request.has_head and not network.num_classes:
        raise ValueError(f"`encoder.output`: timm's {request.model} has no classifier; it must be features")
    preprocess = preprocessing(timm.data.resolve_model_data_config(network)).replace(request.preprocess)
    config: Any = network.pretrained_cfg
    if config.get("fixed_input_size"):
        set_size(network, tuple(config["input_size"][1:]), preprocess, request.model)
    return ImageEncoder(network, preprocess, request.resolve(config.get("tag")))


def preprocessing(config: Mapping[str, Any]) -> Preprocess:
    """What `timm.data.create_transform(**config)` does to a picture."""
    frame = (int(config["input_size"][1]), int(config["input_size"][2]))
    size = (math.floor(frame[0] / config["crop_pct"]), math.floor(frame[1] / config["crop_pct"]))
    fit = _FITS.get(config["crop_mode"], "cover")
    mean = tuple(config["mean"])
    return Preprocess(
        size,
        f"pil_{config['interpolation']}",
        mean,
        tuple(config["std"]),
        fit=fit,
        crop=frame,
        # A square is covered by torchvision's Resize; all else that keeps the aspect is timm's ResizeKeepRatio.
        rounding="down" if fit == "cover" and size[0] == size[1] else "nearest",
        fill=tuple(round(255 * value) / 255 for value in mean) if fit == "contain" else 0.0,
    )


def _of_name(timm: Any, request: Request) -> nn.Module:
    name = _name_with_tag(timm, request)
    if request.needs_no_download:
        return _fill(with_seed(lambda: timm.create_model(name, **_head(request))), request)
    if not timm.is_model_pretrained(name):
        raise ValueError(
            f"timm has no weights for {name}: give a tag ({_tags(timm, name)}), a file, or encoder.weights=random"
        )
    with fetching(f"timm's weights of {name}", unusable=RuntimeError):
        # timm takes the safetensors file where there is one; a pickle it reads with weights_only=True, and it has no
        # fallback from that (timm/models/_hub.py, _helpers.py); of a .npz it reads arrays only.
        network: nn.Module = with_seed(lambda: timm.create_model(name, pretrained=True, **_head(request)))
    return network


def _head(request: Request) -> dict[str, int]:
    """The argument that leaves the classifier out, or none."""
    return {} if request.has_head else {"num_classes": 0}


def _name_with_tag(timm: Any, request: Request) -> str:
    """The model's name, with the tag where the configuration has it as weights."""
    name, _, tag = request.model.partition(".")
    check_name(name, timm.list_models(), "timm", request.model)
    needs_no_tag = request.weights in (PRETRAINED, RANDOM) or request.file is not None
    if not needs_no_tag and tag not in ("", request.weights):
        raise ValueError(f"`encoder.weights` {request.weights!r} is not the tag of `encoder.model` {request.model!r}")
    tag = tag if needs_no_tag else request.weights
    if tag and f"{name}.{tag}" not in timm.list_models(f"{name}.*", include_tags=True):
        key = "`encoder.weights`" if not needs_no_tag else "`encoder.model`"
        raise ValueError(
            f"{key}: {tag!r} is no tag of timm's {name} (it has {_tags(timm, name)}); weights may also be "
            "pretrained, random or a file"
        )
    return f"{name}.{tag}" if tag else name


def _tags(timm: Any, name: str) -> str:
    models: list[str] = timm.list_pretrained(f"{name.partition('.')[0]}.*")
    return ", ".join(model.partition(".")[2] for model in models) or "none"


def _of_folder(timm: Any, request: Request) -> tuple[nn.Module, Request]:
    """The network, and the request with the file that its weights are from."""
    config, request = saved_folder(request, "config.json", _FILES)
    try:
        # Reads config.json alone, which names one of timm's own models and its arguments.
        network: nn.Module = with_seed(lambda: timm.create_model(f"{FOLDER}{config.parent}", **_head(request)))
    except Exception as error:  # its arguments may raise anything
        raise ValueError(f"`{config}` makes no model of timm's ({first_line(error)})") from None
    return _fill(network, request), request


def _fill(network: nn.Module, request: Request) -> nn.Module:
    """The network with the weights of the request's file, if there is one."""
    if request.file is not None:
        surplus = () if request.has_head else tuple(_heads(network))
        fill(network, read_state(request.file), f"weights `{request.file}`", ignore=surplus)
    return network


def _heads(network: nn.Module) -> Iterator[str]:
    """The prefixes of names that only a network with its head has."""
    cfg: Any = network.pretrained_cfg
    heads = cfg.get("classifier") or ()
    modules = dict(network.named_modules(remove_duplicate=False))
    for head in (heads,) if isinstance(heads, str) else heads:
        for part in itertools.accumulate(head.split("."), "{}.{}".format):
            if isinstance(modules.get(part, nn.Identity()), nn.Identity):  # a head of several layers goes as a whole
                yield f"{part}."
                break
