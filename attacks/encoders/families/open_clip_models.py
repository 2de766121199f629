"""open_clip's models: the image tower as the encoder, and the text tower beside it."""

import importlib
import json
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.families.folders import FOLDER, check_name, saved_folder, set_size
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Fit, Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request, fetching, first_line, with_seed
from attacks.encoders.weights import fill, read_state
from attacks.runtime.extras import extra

#: The names of the weights in a folder that open_clip's `push_to_hf_hub` has written.
_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")
_FITS: dict[str, Fit] = {"squash": "squash", "longest": "contain"}
#: Parameters of the training loss; no embedding depends on them.
_OF_THE_LOSS = ("logit_scale", "logit_bias")
#: Entries of older files that are no weights.
_SURPLUS = (*_OF_THE_LOSS, "input_resolution", "context_length", "vocab_size", "attn_mask", "text.attn_mask")


def load(request: Request) -> ImageEncoder:
    """`model` is a name of `open_clip.list_models()`, or local-dir: and a folder; `weights` "pretrained" (the first
    of the model's tags), "random", a tag, or a file: a state_dict of both towers or of the image tower.

    The features are those of `encode_image(x)`, not normalised; `texts` are embedded by `encode_text`, except for a
    file of the image tower alone. The preprocessing is that of the weights. A file does not say which tag it is of:
    `tag` does, and must where the tags of the model differ in it. A tag that was trained with QuickGELU has it; for
    such a file without a `tag`, name the model ...-quickgelu.

    Use: CLIP and its like, also with classes as text.
    Not: weights in the format of transformers: `transformers`.
    Source: open_clip.
    Oracle: open_clip's own transform and network, tests/encoders/families/test_open_clip.py.
    With: encoder.model=ViT-B-32 encoder.weights=laion2b_s34b_b79k
    """
    clip = extra("open_clip")
    if request.tag is not None and (request.file is None or request.model.startswith(FOLDER)):
        raise ValueError(
            f"`encoder.tag` says of which tag a file of weights for a named model is; got {request.tag!r}: leave it "
            "out, or give encoder.weights=FILE"
        )
    if request.model.startswith(FOLDER):
        model, request = _of_folder(clip, request)
    else:
        model = _of_name(clip, request)
    two_towers = request.file is None or _fill(model, request.file)
    model.eval().requires_grad_(False)
    preprocess = preprocessing(model.visual.preprocess_cfg).replace(request.preprocess)
    # A tower of timm can change its size; open_clip's own towers cannot.
    size = model.visual.image_size
    set_size(model.visual, (size, size) if isinstance(size, int) else tuple(size), preprocess, request.model)
    texts = TextTower(request.model, model) if two_towers else None
    tag = next(iter(clip.list_pretrained_tags_by_model(request.model)), None)

    def read(answer: Any) -> Any:  # CoCa's also has tokens
        return answer[0] if isinstance(answer, tuple) else answer

    return ImageEncoder(model.visual, preprocess, request.resolve(tag), read=read, texts=texts)


def preprocessing(config: Mapping[str, Any]) -> Preprocess:
    """What `open_clip.image_transform_v2(PreprocessCfg(**config), is_train=False)` does to a picture."""
    size = config["size"]
    frame = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    fit = _FITS.get(config["resize_mode"], "cover")
    oblong = fit == "cover" and frame[0] != frame[1]
    # An oblong is covered by a ResizeKeepRatio that ignores the interpolation.
    bilinear = config["interpolation"] == "bilinear" and not oblong
    return Preprocess(
        frame,
        "pil_bilinear" if bilinear else "pil_bicubic",
        tuple(config["mean"]),
        tuple(config["std"]),
        fit=fit,
        crop=None if fit == "squash" else frame,
        rounding="nearest" if oblong or fit == "contain" else "down",
        fill=config.get("fill_color", 0) / 255 if fit == "contain" else 0.0,
    )


@dataclass(frozen=True, eq=False)
class TextTower:
    """Texts -> (T,D), by the model's tokenizer and text tower, not normalised. It runs on the CPU; the result has the
    device and dtype of the image tower, at least float32. It is not a module, so its weights are not among the
    encoder's."""

    name: str
    model: Any

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Raises ValueError where the tokenizer cannot be fetched."""
        embeddings: Tensor = self.model.encode_text(self._tokenizer(list(texts)), normalize=False)
        weight = next(self.model.visual.parameters())
        return embeddings.to(weight.device, torch.promote_types(weight.dtype, torch.float32))

    @cached_property
    def _tokenizer(self) -> Any:
        clip = extra("open_clip")
        text = clip.get_model_config(self.name)["text_cfg"]
        # A configuration can request that the tokenizer's own code is run; that is refused.
        refusing = {"trust_remote_code": False} if text.get("hf_tokenizer_name") else {}
        label = f"the tokenizer of open_clip's {self.name}"
        with fetching(label):
            try:
                return clip.get_tokenizer(self.name, **refusing)
            except ValueError as error:
                raise ValueError(f"{label} cannot be used ({first_line(error)})") from None


def _of_name(clip: Any, request: Request) -> Any:
    check_name(request.model, clip.list_models(), "open_clip", request.model)
    tags = clip.list_pretrained_tags_by_model(request.model)
    if request.needs_no_download:
        config = _config(clip, request, tags)
        quick = request.tag is not None and bool(config.get("quick_gelu", False))
        with fetching(f"the configuration of the text tower of {request.model}"):
            return _build(clip, request.model, force_preprocess_cfg=config, force_quick_gelu=quick)
    if request.weights == PRETRAINED and not tags:
        raise ValueError(f"open_clip has no weights for {request.model}: give a file, or encoder.weights=random")
    tag = tags[0] if request.weights == PRETRAINED else request.weights
    if not clip.is_pretrained_cfg(request.model, tag):
        raise ValueError(
            f"`encoder.weights` of {request.model} must be {', '.join([*tags, PRETRAINED, RANDOM])} or a file; got "
            f"{request.weights!r}"
        )
    label = f"open_clip's weights {tag} of {request.model}"
    quick = bool(clip.get_pretrained_cfg(request.model, tag).get("quick_gelu", False))
    with fetching(label, unusable=(RuntimeError, pickle.UnpicklingError)):
        # The library prefers a safetensors file; it reads a pickle with weights_only=True.
        return _build(clip, request.model, pretrained=tag, force_quick_gelu=quick)


#: What a tag's configuration says of the preprocessing, and the library's value where it says nothing.
_STEPS = {"mean": None, "std": None, "interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}


def _config(clip: Any, request: Request, tags: Sequence[str]) -> dict[str, Any]:
    """The library's configuration of `request.tag`, or of the first tag. Raises ValueError for a file that may be of
    several, whose preprocessing differs."""
    configs, kinds = {tag: clip.get_pretrained_cfg(request.model, tag) for tag in tags}, dict[str, str]()
    for tag, config in configs.items():
        kinds.setdefault(repr([config.get(step) or value for step, value in _STEPS.items()]), tag)
    is_open = request.tag is None and request.file is not None and len(kinds) > 1
    if is_open or request.tag not in (None, *tags):
        raise ValueError(
            f"`encoder.tag` must be the tag of {request.model} that the weights `{request.file}` are of, for the "
            f"preprocessing differs ({', '.join(kinds.values())}); got {request.tag}: give one of {', '.join(tags)}"
        )
    config = configs[request.tag or tags[0]] if tags else {}
    return {key: value for key, value in config.items() if key != "size"}


def _of_folder(clip: Any, request: Request) -> tuple[Any, Request]:
    """The model without weights, and the request with the file of its weights."""
    config, request = saved_folder(request, "open_clip_config.json", _FILES)
    try:
        json.loads(config.read_text(encoding="utf-8"))["model_cfg"]["text_cfg"]
        return _build(clip, f"{FOLDER}{config.parent}"), request
    except Exception as error:  # its values may raise anything
        raise ValueError(f"`{config}` makes no model of open_clip's ({first_line(error)})") from None


def _build(clip: Any, name: str, **options: Any) -> Any:
    """The library's `create_model`; it fetches no weights for single towers."""
    with _silence():
        options |= {"pretrained_image": False, "pretrained_text": False, "weights_only": True}
        return with_seed(lambda: clip.create_model(name, load_weights="pretrained" in options, **options))


@contextmanager
def _silence() -> Iterator[None]:
    """Drop the library's warnings of weights that it has not loaded. A text tower of transformers may come with code,
    and transformers then asks on standard input whether to run it; with a timeout of zero the answer is no."""

    def foreign(record: logging.LogRecord) -> bool:
        return "open_clip" not in Path(record.pathname).parts

    with ExitStack() as stack:
        logger = logging.getLogger()
        logger.addFilter(foreign)
        stack.callback(logger.removeFilter, foreign)
        with suppress(ImportError):
            code: Any = importlib.import_module("transformers.dynamic_module_utils")
            stack.callback(setattr, code, "TIME_OUT_REMOTE_CODE", code.TIME_OUT_REMOTE_CODE)
            code.TIME_OUT_REMOTE_CODE = 0
        yield


def _fill(model: Any, path: Path) -> bool:
    """Fill the model from a file; False if the file is of the image tower alone, with `visual.` before its names or
    without."""
    label = f"weights `{path}`"
    state = {name.removeprefix("module."): tensor for name, tensor in read_state(path).items()}
    image = {name.removeprefix("visual."): t for name, t in state.items() if name.startswith("visual.")}
    rest = {name for name in state if not name.startswith(("visual.", *_SURPLUS))}
    if image and rest:
        scales = {name: tensor for name, tensor in model.state_dict().items() if name in _OF_THE_LOSS}
        fill(model, state | scales, label, ignore=(*_SURPLUS, "text.transformer.embeddings.position_ids"))
        return True
    fill(model.visual, image or state, label)
    return False
