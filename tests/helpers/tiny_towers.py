"""Tiny vision-language models of transformers with random weights, in folders that the library has written."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VISION = SIZES | {"image_size": 32, "patch_size": 8}
CLIP = VISION | {"model_type": "clip_vision_model"}
SIGLIP = VISION | {"model_type": "siglip_vision_model"}
TEXT = SIZES | {"vocab_size": 40, "hidden_size": 20, "num_key_value_heads": 2, "max_position_embeddings": 64}
LLAMA, GEMMA = TEXT | {"model_type": "llama"}, TEXT | {"model_type": "gemma", "head_dim": 10}
OPT = {"model_type": "opt", "vocab_size": 40, "hidden_size": 20, "ffn_dim": 24, "num_attention_heads": 2}
SHORT = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
SQUARE = {"size": {"height": 32, "width": 32}}
QFORMER = SIZES | {"encoder_hidden_size": 16, "cross_attention_frequency": 1, "vocab_size": 40}

#: Kind -> its class, the fields of its configuration, its image processor, and the processor's settings.
KINDS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "llava": (
        "LlavaForConditionalGeneration",
        {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": 3},
        "CLIPImageProcessor",
        SHORT,
    ),
    "llava-own": (
        "LlavaForConditionalGeneration",
        {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": 3, "vision_feature_layer": [-2, -1]},
        "LlavaImageProcessor",
        SHORT,
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        {"vision_config": SIGLIP | {"vision_use_head": False}, "text_config": GEMMA, "projection_dim": 20},
        "SiglipImageProcessor",
        SQUARE,
    ),
    "blip2": (
        "Blip2ForConditionalGeneration",
        {"vision_config": VISION, "qformer_config": QFORMER, "text_config": OPT, "num_query_tokens": 5},
        "BlipImageProcessor",
        SQUARE,
    ),
    "siglip2": (
        "SiglipModel",
        {"vision_config": VISION, "text_config": TEXT},
        "SiglipImageProcessor",
        SQUARE | {"resample": 2},
    ),
    "beit": ("BeitModel", VISION | {"use_relative_position_bias": True}, "BeitImageProcessor", SQUARE),
    "dinov3": ("DINOv3ViTModel", VISION | {"num_register_tokens": 3}, "DINOv3ViTImageProcessor", SQUARE),
}


def configured(kind: str) -> Any:
    name, given = KINDS[kind][:2]
    fields = {key: dict(value) if isinstance(value, dict) else value for key, value in given.items()}
    return getattr(hf, name).config_class(**fields)


def processor_of(kind: str) -> Any:
    name, given = KINDS[kind][2:]
    return getattr(hf, name)(**given)


def save(kind: str, folder: Path) -> Path:
    """The model of that kind, its weights far enough from zero to matter, and its processor."""
    generator = torch.Generator().manual_seed(1)
    network = getattr(hf, KINDS[kind][0])(configured(kind))
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    network.save_pretrained(folder)
    processor_of(kind).save_pretrained(folder)
    return folder
