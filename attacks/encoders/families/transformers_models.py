"""Vision models of transformers: CLIP, SigLIP, DINOv2, DINOv3, ViT, BEiT, and others that turn a picture into tokens;
and the vision towers of vision-language models."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.families.folders import model_folder, read_config, read_weights
from attacks.encoders.families.processor import FILES, preprocessing
from attacks.encoders.families.towers import (
    TEXT_PADDING,
    Inputs,
    VisionTower,
    has_tower,
    plain_pixels,
    tower_inputs,
    tower_parts,
    tower_pool,
    without_language,
)
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Preprocess, preprocess_from
from attacks.encoders.request import RANDOM, Request, with_seed
from attacks.encoders.weights import half_dtype
from attacks.runtime.extras import extra

_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_POOLS = ("pooled", "cls", "mean")
#: Parameters that are tokens before the patches, by the last part of their names.
_PREFIX = ("cls_token", "class_embedding", "distillation_token", "register_tokens")


def load(request: Request) -> ImageEncoder:
    """`model` is a folder (config.json, preprocessor_config.json, model.safetensors) or a name on the hub, which the
    local cache may have; `weights` "pretrained" (the folder's), "random", or a file with the library's names.

    `pool`: "pooled" is what the library pools: CLIP's projected embedding (`get_image_features`), else
    `pooler_output`; "cls" the first token of `last_hidden_state`, "mean" the mean of its patches, without the class
    token and registers. None for "pooled" where there is one, else "cls".

    Of two towers the network is the picture's; there are no `texts` without the folder's tokenizer, or where `pool`
    leaves their space. Code that comes with a model is never run.

    Use: a model of the hub: CLIP, SigLIP, DINOv2, or the tower of a vision-language model.
    Not: a model that brings code of its own, which is never run.
    Source: transformers.
    Oracle: the library's processor and network, tests/encoders/families/test_transformers.py.
    With: encoder.model=facebook/dinov2-base encoder.pool=cls
    """
    hf = extra("transformers")
    if request.pool not in (None, *_POOLS):
        raise ValueError(f"`encoder.pool` must be one of {', '.join(_POOLS)}, or null; got {request.pool!r}")
    folder = model_folder(request, ("*.json", *_TOKENIZERS, "merges.txt"), _WEIGHTS)
    with _silence(hf):
        config = _config(hf, folder)
        network, file = _network(hf, config, folder, request)
        network.eval()
        preprocess, inputs = _preprocess(hf, folder, request)
        if inputs is not plain_pixels or (
            has_tower(config, type(network)) and not hasattr(network, "visual_projection")
        ):
            tower: nn.Module = VisionTower(network, inputs)
            ramp = torch.linspace(0.25, 0.75, 80).expand(1, 3, 64, 80)
            label = f"{request.model} ({config.model_type})"
            read, is_pooled = tower_pool(tower, preprocess(ramp), request.pool, label), False
        else:
            if hasattr(network, "visual_projection") and hasattr(network, "vision_model"):
                tower = _ProjectedTower(network)
            else:
                tower = network.get_submodule("vision_model") if config.model_type in TEXT_PADDING else network
            read, is_pooled = _pool(tower, preprocess, config, request)
    is_pooled = is_pooled and config.model_type in TEXT_PADDING
    has_texts = is_pooled and any((folder / name).is_file() for name in _TOKENIZERS)
    texts = _Texts(network, folder, config) if has_texts else None
    return ImageEncoder(tower, preprocess, replace(request.origin, file=file), read=read, texts=texts)


def _preprocess(hf: Any, folder: Path, request: Request) -> tuple[Preprocess, Inputs]:
    if not any((folder / name).is_file() for name in FILES):
        return preprocess_from(request.preprocess, f"{folder}, without {FILES[0]},"), plain_pixels
    with _one_line(f"the image processor of {folder}"):
        processor = hf.AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return preprocessing(processor).replace(request.preprocess), tower_inputs(processor)


def _config(hf: Any, folder: Path) -> Any:
    fields = read_config(folder)
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in hf.CONFIG_MAPPING:
        code = "; the code that comes with it (auto_map) is never run" if "auto_map" in fields else ""
        raise ValueError(f"`encoder.model` {folder}: transformers {hf.__version__} has no model_type {kind!r}{code}")
    with _one_line(f"config.json of {folder}"):
        config = hf.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # Of the configuration, not the file: one file can name another (configuration_files), or hold it in a part.
    if any(getattr(part, "quantization_config", None) for part in (config, getattr(config, "text_config", None))):
        raise ValueError(f"`encoder.model` {folder} is quantised, and has no exact gradient; take the plain weights")
    config._attn_implementation = None  # a folder may name a kernel on the hub, which is code
    if type(config) not in hf.MODEL_MAPPING:
        raise ValueError(f"`encoder.model` {folder}: a {kind} is no model of transformers' AutoModel")
    return config


def _network(hf: Any, config: Any, folder: Path, request: Request) -> tuple[nn.Module, Path | None]:
    """The library's model with its weights, and their file; of a vision-language model without its language model."""
    architectures = config.architectures or ()
    kind = whole = hf.MODEL_MAPPING[type(config)]
    for name_of_kind in ("CLIPVisionModelWithProjection", "Blip2ForConditionalGeneration"):
        if name_of_kind in architectures:  # AutoModel would drop its projection, or its Q-Former
            kind = whole = getattr(hf, name_of_kind)
    parts = frozenset[str]()
    random = request.weights == RANDOM
    label = f"the model of {folder}"
    with _one_line(label):
        if has_tower(config, whole):
            kind = without_language(whole)
            parts = tower_parts(kind, config)
    state, file, label = ({}, None, label) if random else read_weights(request, folder, "model", parts)
    dtype = half_dtype(state) or torch.float32
    arguments = {"config": config, "state_dict": state, "dtype": dtype, "attn_implementation": None}
    with _one_line(label):  # the library reads the names of its older versions, and draws what is missing
        network, info = with_seed(
            lambda: kind.from_pretrained(None, output_loading_info=True, ignore_mismatched_sizes=True, **arguments)
        )
    network.__class__ = whole
    missing, other = sorted(info["missing_keys"]), sorted(info["mismatched_keys"])
    if random:
        return network, None
    if missing and all(name.startswith("pooler.") for name in missing) and not other:
        network.pooler = None  # as of a classifier's weights; the library would take random ones
    elif missing or other:
        odd = [f"{name} has shape {tuple(has)}, must be {tuple(shape)}" for name, has, shape in other]
        raise ValueError(
            f"{label} do not fit {whole.__name__}: {len(missing)} keys missing, {len(other)} of another shape "
            f"(first: {[*missing, *odd][0]}); are they of another model?"
        )
    return network, file


class _ProjectedTower(nn.Module):
    """CLIP's image tower, as in `get_image_features`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model, self.visual_projection = model.vision_model, model.visual_projection

    def forward(self, pictures: Tensor) -> Any:
        answer = self.vision_model(pictures)
        answer.pooler_output = self.visual_projection(answer.pooler_output)
        return answer


@torch.no_grad()
def _pool(
    tower: nn.Module, preprocess: Preprocess, config: Any, request: Request
) -> tuple[Callable[[Any], Tensor], bool]:
    """The function from the tower's output to features, chosen from its output for a grey picture; and whether the
    library pools."""
    grey = preprocess(torch.full((1, 3, 64, 80), 0.5)).to(next(tower.parameters()).dtype)
    label = f"{request.model} ({config.model_type})"
    try:
        answer = tower(grey)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"`encoder.model` {label} does not take a picture of {grey.shape[2]}x{grey.shape[3]} by itself "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    tokens, pooler_output = (getattr(answer, name, None) for name in ("last_hidden_state", "pooler_output"))
    if request.pool in (None, "pooled") and isinstance(pooler_output, Tensor):
        return lambda answer: answer.pooler_output.flatten(1), True
    if request.pool == "pooled" or not isinstance(tokens, Tensor):
        reason = ", or its weights lack that layer" if hasattr(tower, "pooler") else ""
        raise ValueError(f"`encoder.pool`: {label} pools nothing itself{reason}; take cls or mean")
    if tokens.dim() == 4 and request.pool == "mean":
        return lambda answer: answer.last_hidden_state.mean((2, 3)), False
    prefix_tokens = [p for name, p in tower.named_parameters() if name.rpartition(".")[2] in _PREFIX]
    first = sum(1 if p.dim() == 1 else p.shape[-2] for p in prefix_tokens)
    if config.model_type == "dinov3_convnext":  # the mean of its positions comes first
        first = 1
    # The number of patches, where the configuration has their size.
    size = getattr(getattr(config, "vision_config", config), "patch_size", None)
    sides = (size, size) if isinstance(size, int) else size
    patches = None if sides is None else (grey.shape[2] // sides[0]) * (grey.shape[3] // sides[1])
    if tokens.dim() != 3 or (patches is not None and tokens.shape[1] != first + patches):
        raise ValueError(
            f"`encoder.pool`: {label} answers with shape {tuple(tokens.shape)}, and nothing says where its patches "
            "are; take pooled"
        )
    if request.pool == "mean":
        return lambda answer: answer.last_hidden_state[:, first:].mean(1), False
    if not first:
        raise ValueError(f"`encoder.pool`: {label} has no class token; take pooled or mean")
    return lambda answer: answer.last_hidden_state[:, 0], False


@dataclass
class _Texts:
    """The text tower with its tokenizer, which is read on first use."""

    network: Any
    folder: Path
    config: Any

    @cached_property
    def tokenizer(self) -> Any:
        hf = extra("transformers")
        with _silence(hf), _one_line(f"the tokenizer of {self.folder}"):
            return hf.AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)

    @torch.no_grad()
    def __call__(self, texts: Sequence[str]) -> Tensor:
        text = self.config.text_config
        # Those of a RoBERTa begin behind the number of its padding.
        spare = text.pad_token_id + 1 if self.config.model_type == "altclip" else 0
        longest = text.max_position_embeddings - spare
        padding = TEXT_PADDING[self.config.model_type]
        tokens = self.tokenizer(
            list(texts), padding=padding, truncation=True, max_length=longest, return_tensors="pt"
        )
        embeddings: Tensor = self.network.get_text_features(**tokens).pooler_output
        return embeddings.float()


@contextmanager
def _one_line(label: str) -> Iterator[None]:
    """Report the library's errors in one line."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{label} cannot be read by transformers: {' '.join(str(error).split())[:300]}") from None


@contextmanager
def _silence(hf: Any) -> Iterator[None]:
    """Silence the library's table of unloaded weights, most of which belong to heads."""
    verbosity, bar = hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    try:
        yield
    finally:
        hf.logging.set_verbosity(verbosity)
        if bar:
            hf.logging.enable_progress_bar()
