"""timm's models without their heads: the pooled features that the classifier reads."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Fit, Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request, fetching, fill_from, first_line, unseen
from attacks.encoders.weights import load_weights
from attacks.runtime.extras import extra

#: Before a folder that timm has saved (`save_for_hf`, or a copy of a repository of the hub).
FOLDER = "local-dir:"
#: The names of the weights in such a folder.
_FILES = ("model.safetensors", "pytorch_model.bin")
_FITS: dict[str, Fit] = {"squash": "squash", "border": "contain"}


def load(request: Request) -> ImageEncoder:
    """`model` is a name of `timm.list_models()`, with the tag of its weights or without (resnet50.a1_in1k), or
    local-dir: and a folder; `weights` "pretrained", "random", a tag, or a file of timm's own names, with the head or
    without.

    The features are those of `num_classes=0`. The preprocessing is that of `resolve_model_data_config` for the
    weights; for a file and for random weights, for the model's default ones. Where `preprocess` has another size than
    the model, a model of fixed size is changed to it by its `set_input_size`, which resamples the positions.

    Raises:
        ValueError, FileNotFoundError: timm is missing; unknown model or weights; no network; a file that does not
            fit; a size that the model cannot take.
    """
    timm = extra("timm")
    if request.model.startswith(FOLDER):
        network, request = _of_folder(timm, request)
    else:
        network = _of_name(timm, request)
    preprocess = preprocessing(timm.data.resolve_model_data_config(network)).replaced(request.preprocess)
    _take(network, preprocess, request.model)
    config: Any = network.pretrained_cfg
    return ImageEncoder(network, preprocess, request.resolved(config.get("tag")))


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
    name = _tagged(timm, request)
    if request.file is not None or request.weights == RANDOM:
        network: nn.Module = unseen(lambda: timm.create_model(name, num_classes=0))
        fill_from(network, request, without=tuple(_heads(network)))
        return network
    if not timm.is_model_pretrained(name):
        raise ValueError(
            f"timm has no weights for {name}: give a tag ({_offered(timm, name)}), a file, or encoder.weights=random"
        )
    what = f"timm's weights of {name}"
    try:
        with fetching(what):
            # timm takes the safetensors file where there is one; a pickle it reads with weights_only=True, and it has
            # no fallback from that (timm/models/_hub.py, _helpers.py); of a .npz it reads arrays only.
            network = unseen(lambda: timm.create_model(name, pretrained=True, num_classes=0))
    except RuntimeError as error:
        raise ValueError(f"{what} cannot be used ({first_line(error)})") from None
    return network


def _tagged(timm: Any, request: Request) -> str:
    """The model's name, with the tag where the configuration has it as weights."""
    known = timm.list_models()
    name, _, tag = request.model.partition(".")
    if name not in known:
        near = difflib.get_close_matches(name, known, 3, 0.5)
        raise ValueError(
            f"`encoder.model` must be one of timm's {len(known)}, or {FOLDER}FOLDER; got {request.model!r}"
            + (f" (near it: {', '.join(near)})" if near else "")
        )
    own = request.weights in (PRETRAINED, RANDOM) or request.file is not None
    if not own and tag not in ("", request.weights):
        raise ValueError(f"`encoder.weights` {request.weights!r} is not the tag of `encoder.model` {request.model!r}")
    tag = tag if own else request.weights
    if tag and f"{name}.{tag}" not in timm.list_models(f"{name}.*", include_tags=True):
        key = "`encoder.weights`" if not own else "`encoder.model`"
        raise ValueError(
            f"{key}: {tag!r} is no tag of timm's {name} (it has {_offered(timm, name)}); weights may also be "
            "pretrained, random or a file"
        )
    return f"{name}.{tag}" if tag else name


def _offered(timm: Any, name: str) -> str:
    models: list[str] = timm.list_pretrained(f"{name.partition('.')[0]}.*")
    return ", ".join(model.partition(".")[2] for model in models) or "none"


def _of_folder(timm: Any, request: Request) -> tuple[nn.Module, Request]:
    """The network, and the request with the file that its weights are from."""
    folder = Path(request.model.removeprefix(FOLDER))
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"`encoder.model`: there is no `{folder / 'config.json'}` (paths are relative to {Path.cwd()})"
        )
    if request.weights == PRETRAINED:
        file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
        if file is None:
            raise FileNotFoundError(f"`{folder}` has no {' or '.join(_FILES)}; name a file with encoder.weights=FILE")
    elif request.weights == RANDOM or request.file is not None:
        file = request.file
    else:
        raise ValueError(f"`encoder.weights` of a folder are pretrained, random or a file; got {request.weights!r}")
    try:
        # Reads config.json alone, which names one of timm's own models and its arguments.
        network: nn.Module = unseen(lambda: timm.create_model(f"{FOLDER}{folder}", num_classes=0))
    except Exception as error:  # its arguments may raise anything
        raise ValueError(f"`{folder / 'config.json'}` makes no model of timm's ({first_line(error)})") from None
    if file is not None:
        load_weights(network, file, without=tuple(_heads(network)))
    return network, request if file is None else dataclasses.replace(request, weights=str(file))


def _heads(network: nn.Module) -> Iterator[str]:
    """The prefixes of names that only a network with its head has."""
    cfg: Any = network.pretrained_cfg
    heads = cfg.get("classifier") or ()
    for head in (heads,) if isinstance(heads, str) else heads:
        parts = head.split(".")
        for depth in range(1, len(parts) + 1):
            part = ".".join(parts[:depth])
            try:
                gone = isinstance(network.get_submodule(part), nn.Identity)
            except AttributeError:
                gone = True
            if gone:  # a head of several layers goes as a whole
                yield f"{part}."
                break


def _take(network: Any, preprocess: Preprocess, model: str) -> None:
    """Change a model of fixed size to the size of the preprocessing."""
    _, *own = network.pretrained_cfg["input_size"]
    shape = preprocess.frame
    if shape == tuple(own) or not network.pretrained_cfg.get("fixed_input_size"):
        return
    if shape is None or not hasattr(network, "set_input_size"):
        raise ValueError(
            f"`encoder.preprocess`: {model} takes {own[0]}x{own[1]} pixels and no others; leave `crop` and `size` "
            "as they are"
        )
    network.set_input_size(img_size=shape)
