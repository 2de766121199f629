"""Tiny models of every family in the files of its own library, and what the library makes of a picture.

A library is imported where a model of it is made: without it, the test is skipped.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torchvision
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from attacks import load_encoder
from attacks.encoders.request import with_seed

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

WORDS = SIZES | {"num_hidden_layers": 1, "vocab_size": 12, "max_position_embeddings": 9, "eos_token_id": 1}
TOWERS = {"vision_config": VISION, "text_config": WORDS}
ALT = WORDS | {"max_position_embeddings": 11, "project_dim": 14}
CONVS = {"hidden_sizes": [4, 6, 8, 10], "depths": [1, 1, 1, 1]}

LLAVA = {"vision_config": CLIP, "text_config": LLAMA, "image_token_index": 3}
HEADLESS = SIGLIP | {"vision_use_head": False}
PALIGEMMA = {"vision_config": HEADLESS, "text_config": GEMMA, "projection_dim": 20}
BLIP = {"vision_config": VISION, "qformer_config": QFORMER, "text_config": OPT, "num_query_tokens": 5}
QWEN_VISION = QWEN | {"embed_dim": 16, "hidden_size": 20, "mlp_ratio": 2}
WINDOWS = {"window_size": 16, "fullatt_block_indexes": [1]}
QWEN_WINDOWS = QWEN | WINDOWS | {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 20}
NAFLEX = SIZES | {"patch_size": 8, "num_patches": 16}
PIXTRAL = LLAVA | {"vision_config": VISION | {"model_type": "pixtral", "head_dim": 8, "image_size": 64}}
PIXTRAL |= {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
ANYRES = {"image_grid_pinpoints": GRIDS}
NEXT_PIXELS = ANYRES | {"size": {"shortest_edge": 32}, "crop_size": SQUARE["size"]}
ONEVISION = LLAVA | ANYRES | {"vision_config": HEADLESS, "text_config": TEXT | {"model_type": "qwen2"}}

#: Of transformers: kind -> its class, the fields of its configuration, its image processor, and that one's settings.
KINDS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    kind: (f"{name}ForConditionalGeneration", fields, f"{processor}ImageProcessor", settings)
    for kind, name, fields, processor, settings in (
        ("llava", "Llava", LLAVA, "CLIP", SHORT),
        ("llava-own", "Llava", LLAVA | {"vision_feature_layer": [-2, -1]}, "Llava", SHORT),
        ("paligemma", "PaliGemma", PALIGEMMA, "Siglip", SQUARE),
        ("blip2", "Blip2", BLIP, "Blip", SQUARE),
        ("qwen2-vl", "Qwen2VL", {"vision_config": QWEN_VISION, "text_config": QWEN_TEXT}, "Qwen2VL", QWEN_PIXELS),
        (
            "qwen2.5-vl",
            "Qwen2_5_VL",
            {"vision_config": QWEN_WINDOWS, "text_config": QWEN_TEXT},
            "Qwen2VL",
            QWEN_PIXELS,
        ),
        ("pixtral", "Llava", PIXTRAL, "Pixtral", {"patch_size": 8, "size": {"longest_edge": 52}}),
        ("llava-next", "LlavaNext", LLAVA | ANYRES, "LlavaNext", NEXT_PIXELS),
        ("llava-onevision", "LlavaOnevision", ONEVISION, "LlavaOnevision", SQUARE | ANYRES),
        ("idefics3", "Idefics3", IDEFICS, "Idefics3", SPLIT),
        ("smolvlm", "SmolVLM", IDEFICS, "SmolVLM", SPLIT),
    )
} | {
    "siglip2": ("SiglipModel", TOWERS | {"text_config": TEXT}, "SiglipImageProcessor", SQUARE | {"resample": 2}),
    "siglip2-naflex": (
        *("Siglip2Model", {"vision_config": NAFLEX, "text_config": TEXT}),
        *("Siglip2ImageProcessor", {"patch_size": 8, "max_num_patches": 20}),
    ),
    "clip": ("CLIPModel", TOWERS | {"projection_dim": 10}, "CLIPImageProcessor", SHORT),
    "altclip": ("AltCLIPModel", TOWERS | {"text_config": ALT, "projection_dim": 10}, "CLIPImageProcessor", SHORT),
    "siglip": ("SiglipModel", TOWERS, "SiglipImageProcessor", SQUARE),
    "dinov2": ("Dinov2Model", VISION, "BitImageProcessor", SHORT),
    "registers": ("Dinov2WithRegistersModel", VISION | {"num_register_tokens": 3}, "BitImageProcessor", SHORT),
    "convnext": ("DINOv3ConvNextModel", CONVS, "DINOv3ViTImageProcessor", SQUARE),
    "vit": ("ViTModel", VISION, "ViTImageProcessor", SQUARE),
    "beit": ("BeitModel", VISION | {"use_relative_position_bias": True}, "BeitImageProcessor", SQUARE),
    "dinov3": ("DINOv3ViTModel", VISION | {"num_register_tokens": 3}, "DINOv3ViTImageProcessor", SQUARE),
}


def transformers() -> Any:
    return pytest.importorskip("transformers")


def make_config(kind: str) -> Any:
    name, fields = KINDS[kind][:2]
    copies = {key: dict(value) if isinstance(value, dict) else value for key, value in fields.items()}
    return getattr(transformers(), name).config_class(**copies)


def make_processor(kind: str) -> Any:
    name, settings = KINDS[kind][2:]
    return getattr(transformers(), name)(**settings)


def save(kind: str, folder: Path) -> Path:
    """The model of that kind, its weights far enough from zero to matter, and its processor."""
    generator = torch.Generator().manual_seed(1)
    network = getattr(transformers(), KINDS[kind][0])(make_config(kind))
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    network.save_pretrained(folder)
    make_processor(kind).save_pretrained(folder)
    return folder


@torch.no_grad()
def library_output(folder: Path, kind: str, pictures: list[Image.Image]) -> Any:
    """The library's whole model on what its processor makes of 8-bit pictures."""
    network = getattr(transformers(), KINDS[kind][0]).from_pretrained(folder).eval()
    images = [[picture] for picture in pictures] if kind in ("idefics3", "smolvlm") else pictures
    inputs = make_processor(kind)(images, return_tensors="pt")
    return getattr(network, "get_image_features", network)(**inputs)


def pooled_rows(output: Any) -> torch.Tensor:
    """(N,D) of an output of the library for N pictures."""
    features = output.pooler_output
    features = torch.stack(tuple(features)) if isinstance(features, tuple | list) else features
    return features if features.dim() == 2 else features.mean(1)


# --- diffusers ---

VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "block_out_channels": (4, 8, 8),
    "norm_num_groups": 2,
    "latent_channels": 3,
}
#: Stable Diffusion 1, 3 (shifted, without the last convolution), and one with statistics of each channel.
VAES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shifted": {"shift_factor": 0.06, "scaling_factor": 1.5, "use_quant_conv": False, "use_post_quant_conv": False},
    "channels": {"latents_mean": [0.1, -0.2, 0.3], "latents_std": [1.0, 2.0, 0.5]},
}


def save_vae(kind: str, folder: Path) -> Path:
    torch.manual_seed(1)
    pytest.importorskip("diffusers").AutoencoderKL(**VAE, **VAES[kind]).save_pretrained(folder)
    return folder


def latents(vae: Any, values: torch.Tensor) -> torch.Tensor:
    """What the pipelines of diffusers work on, in a row for each picture in [-1,1]."""
    mean, config = vae.encode(values).latent_dist.mean, vae.config
    if config.latents_mean is not None:
        means, stds = (torch.tensor(v)[None, :, None, None] for v in (config.latents_mean, config.latents_std))
        mean = (mean - means) / stds
    return ((mean - (config.shift_factor or 0)) * config.scaling_factor).flatten(1)


# --- open_clip ---

CLIP_WORDS = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
CLIP_VISION = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
TIMM = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160}
TOKENS = {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
CLIPS: dict[str, dict[str, Any]] = {
    "tiny": {"vision_cfg": CLIP_VISION},
    "tiny-resnet": {"vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 16}},
    "tiny-timm": {"vision_cfg": TIMM, "custom_text": True},
    "tiny-coca": {
        "vision_cfg": CLIP_VISION | TOKENS,
        "text_cfg": CLIP_WORDS | {"embed_cls": True, "output_tokens": True},
        "multimodal_cfg": {"context_length": 76, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
        "custom_text": True,
    },
}


def register_clips(folder: Path) -> Any:
    """open_clip with the tiny models among its own."""
    open_clip = pytest.importorskip("open_clip")
    for name, fields in CLIPS.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 12, "text_cfg": CLIP_WORDS} | fields))
    open_clip.add_model_config(folder)
    return open_clip


# --- TorchScript, ONNX and torchvision ---


def tiny_network() -> nn.Sequential:
    """A smooth one, with statistics of a batch norm; for pictures of 16x16."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Softplus(), nn.AdaptiveAvgPool2d(2)
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 5))
    network(torch.rand(8, 3, 16, 16))
    return network.eval()


def save_script(path: Path, module: nn.Module, trace: torch.Tensor | None = None, freeze: bool = False) -> Path:
    """TorchScript is deprecated, but such files exist."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.script(module) if trace is None else torch.jit.trace(module, trace)
        (torch.jit.freeze(script) if freeze else script).save(path)
    return path


PREPROCESS = {"size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]}
STAGES = v2.Resize((16, 16), antialias=True), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)
BY_HAND = v2.Compose([*STAGES, v2.Normalize(PREPROCESS["mean"], PREPROCESS["std"])])


def before_the_head(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The input of the last linear layer called, or of the classifier of a SqueezeNet."""
    inputs, heads = [], [m for m in network.modules() if isinstance(m, nn.Linear)]
    if isinstance(network, torchvision.models.SqueezeNet):
        heads = [network.classifier]
    handles = [m.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for m in heads]
    with torch.no_grad():
        network(images)
    for handle in handles:
        handle.remove()
    return inputs[-1].mean((2, 3)) if inputs[-1].dim() == 4 else inputs[-1]


# --- one form for all ---


class Model(NamedTuple):
    """A model of a family by the arguments of `load_encoder`, and the library's own features (1,D) of an 8-bit
    picture."""

    family: str
    name: str
    options: dict[str, Any]
    library: Callable[[Image.Image], torch.Tensor]
    file: Path | None = None  # of its weights

    def load(self, **preprocess: Any) -> Any:
        fields = self.options.get("preprocess", {}) | preprocess
        return load_encoder(self.family, self.name, **self.options | {"preprocess": fields})


RANDOM = {"weights": "random"}


def torchvision_model(folder: Path) -> Model:
    torch.manual_seed(1)
    network = torchvision.models.mobilenet_v3_small().eval()
    torch.save(network.state_dict(), file := folder / "w.pt")
    preset = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.transforms()
    name, options = "mobilenet_v3_small", {"weights": str(file)}
    return Model("torchvision", name, options, lambda p: before_the_head(network, preset(p)[None]), file)


def timm_model(folder: Path, name: str) -> Model:
    timm = pytest.importorskip("timm")
    network = with_seed(lambda: timm.create_model(name, num_classes=0)).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    return Model("timm", name, RANDOM, lambda picture: network(transform(picture)[None]))


def open_clip_model(folder: Path, name: str) -> Model:
    open_clip = register_clips(folder)
    model = with_seed(lambda: open_clip.create_model(name, pretrained_text=False)).eval()
    config = open_clip.transform.PreprocessCfg(**model.visual.preprocess_cfg)
    transform = open_clip.transform.image_transform_v2(config, is_train=False)
    return Model("open_clip", name, RANDOM, lambda p: model.encode_image(transform(p)[None], normalize=False))


def transformers_model(folder: Path, kind: str) -> Model:
    file = save(kind, folder) / "model.safetensors"
    return Model("transformers", str(folder), {}, lambda p: pooled_rows(library_output(folder, kind, [p])), file)


def diffusers_model(folder: Path, kind: str) -> Model:
    diffusers = pytest.importorskip("diffusers")
    vae = diffusers.AutoencoderKL.from_pretrained(save_vae(kind, folder)).eval()
    processor = diffusers.image_processor.VaeImageProcessor(vae_scale_factor=4)
    preprocess, file = (
        partial(processor.preprocess, height=32, width=32),
        folder / "diffusion_pytorch_model.safetensors",
    )
    return Model("diffusers", str(folder), {}, lambda picture: latents(vae, preprocess(picture)), file)


def torchscript_model(folder: Path, is_traced: bool) -> Model:
    network, trace = tiny_network(), torch.rand(1, 3, 16, 16) if is_traced else None
    file = save_script(folder / "network.pt", network, trace)
    return Model("torchscript", str(file), {"preprocess": PREPROCESS}, lambda p: network(BY_HAND(p)[None]), file)


def onnx_model(folder: Path, dynamo: bool) -> Model:
    from tests.helpers.onnx_files import by_runtime, export_onnx

    file = export_onnx(tiny_network(), folder / "tiny.onnx", dynamo, side=16)
    return Model("onnx", str(file), {"preprocess": PREPROCESS}, lambda p: by_runtime(file, BY_HAND(p)[None]), file)


TIMM_MODELS = ("test_vit", "test_resnet", "test_convnext", "test_efficientnet", "test_vit_relpos", "levit_128s")
#: Name -> what makes the model in a folder.
MODELS: dict[str, Callable[[Path], Model]] = {
    "torchvision": torchvision_model,
    "torchscript": partial(torchscript_model, is_traced=False),
    "torchscript traced": partial(torchscript_model, is_traced=True),
    "onnx": partial(onnx_model, dynamo=False),
    "onnx dynamo": partial(onnx_model, dynamo=True),
    **{f"timm {name}": partial(timm_model, name=name) for name in TIMM_MODELS},
    **{f"open_clip {name}": partial(open_clip_model, name=name) for name in CLIPS},
    **{f"diffusers {kind}": partial(diffusers_model, kind=kind) for kind in VAES},
    **{f"transformers {kind}": partial(transformers_model, kind=kind) for kind in KINDS},
}
