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

QWEN = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN_TEXT = TEXT | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 2]}}
QWEN_PIXELS = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 2000}}

GRIDS = [[32, 64], [64, 32], [64, 64]]
IDEFICS = {"vision_config": VISION, "text_config": LLAMA, "scale_factor": 2, "image_token_id": 3}
SPLIT = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}

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
    "qwen2-vl": (
        "Qwen2VLForConditionalGeneration",
        {"vision_config": QWEN | {"embed_dim": 16, "hidden_size": 20, "mlp_ratio": 2}, "text_config": QWEN_TEXT},
        "Qwen2VLImageProcessor",
        QWEN_PIXELS,
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "vision_config": QWEN
            | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 20}
            | {"window_size": 16, "fullatt_block_indexes": [1]},
            "text_config": QWEN_TEXT,
        },
        "Qwen2VLImageProcessor",
        QWEN_PIXELS,
    ),
    "siglip2-naflex": (
        "Siglip2Model",
        {"vision_config": SIZES | {"patch_size": 8, "num_patches": 16}, "text_config": TEXT},
        "Siglip2ImageProcessor",
        {"patch_size": 8, "max_num_patches": 20},
    ),
    "pixtral": (
        "LlavaForConditionalGeneration",
        {
            "vision_config": VISION | {"model_type": "pixtral", "head_dim": 8, "image_size": 64},
            "text_config": LLAMA,
            "image_token_index": 3,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        "PixtralImageProcessor",
        {"patch_size": 8, "size": {"longest_edge": 52}},
    ),
    "llava-next": (
        "LlavaNextForConditionalGeneration",
        {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": 3, "image_grid_pinpoints": GRIDS},
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 32}, "crop_size": SQUARE["size"], "image_grid_pinpoints": GRIDS},
    ),
    "llava-onevision": (
        "LlavaOnevisionForConditionalGeneration",
        {
            "vision_config": SIGLIP | {"vision_use_head": False},
            "text_config": TEXT | {"model_type": "qwen2"},
            "image_token_index": 3,
            "image_grid_pinpoints": GRIDS,
        },
        "LlavaOnevisionImageProcessor",
        SQUARE | {"image_grid_pinpoints": GRIDS},
    ),
    "idefics3": ("Idefics3ForConditionalGeneration", IDEFICS, "Idefics3ImageProcessor", SPLIT),
    "smolvlm": ("SmolVLMForConditionalGeneration", IDEFICS, "SmolVLMImageProcessor", SPLIT),
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
