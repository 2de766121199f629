"""The encoders and defences that a configuration can name, and the keys of each. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attacks.schema.options import MISSING, option


@dataclass
class EncoderConfig:
    """What every encoder has."""

    name: str = MISSING
    features: list[str] = option([], "layers whose features replace the embedding: module, or module:pool")
    stochastic: bool = option(False, "dropout stays active and a defence draws from its ranges, anew for each view")


@dataclass
class PocketConfig(EncoderConfig):
    """The small encoder that ships with the package."""

    name: str = "pocket"
    weights: str | None = option(None, "a safetensors file of the same architecture; null: the shipped one")


@dataclass
class PhashConfig(EncoderConfig):
    """The perceptual hash of PyPI's ImageHash: 64 numbers whose signs are the bits."""

    name: str = "phash"


@dataclass
class LibraryConfig(EncoderConfig):
    """What a model of a library has."""

    model: str = option(MISSING, "the library's name of the model, a folder, or a name on the hub")
    weights: str = option("pretrained", "pretrained, random, a name that the library knows, or a file of weights")
    preprocess: dict[str, Any] = option({}, "what differs from the model's own preprocessing: {kernel: cv2_area}")


@dataclass
class TorchvisionConfig(LibraryConfig):
    """A classification model of torchvision, with the features that its head reads: resnet50, vit_b_16, ..."""

    name: str = "torchvision"


@dataclass
class TimmConfig(LibraryConfig):
    """A model of timm without its head: resnet50, vit_small_patch14_dinov2, convnext_base, ..."""

    name: str = "timm"


@dataclass
class OpenClipConfig(LibraryConfig):
    """The image tower of a model of open_clip: ViT-B-32, ...; `weights` is one of its tags."""

    name: str = "open_clip"


@dataclass
class DiffusersConfig(LibraryConfig):
    """The latents of a VAE of diffusers: a folder, or a name on the hub."""

    name: str = "diffusers"


@dataclass
class TransformersConfig(LibraryConfig):
    """A model of transformers (CLIP, SigLIP, DINOv2, DINOv3, ViT): a folder, or a name on the hub."""

    name: str = "transformers"
    pool: str | None = option(None, "which tokens become the features: pooled, cls, mean; null: the model's own")


@dataclass
class FileConfig(EncoderConfig):
    """What a model has whose weights come with it."""

    model: str = option(MISSING, "the file, or the name of the plug-in")
    preprocess: dict[str, Any] = option({}, "size, mean, std, kernel, fit, crop, bgr: a file does not hold them")


@dataclass
class OnnxConfig(FileConfig):
    """A network in an ONNX file, turned into torch's operations: ArcFace and others."""

    name: str = "onnx"


@dataclass
class TorchScriptConfig(FileConfig):
    """A TorchScript file. It is a program: name it on the command line, a preset may not."""

    name: str = "torchscript"


@dataclass
class PluginConfig(FileConfig):
    """An encoder that an installed package offers under the entry point `viewproof.encoders`."""

    name: str = "plugin"


@dataclass
class DefenceConfig:
    """Stages before the encoder. With encoder.stochastic=true ranges are drawn for each view, else their middle is
    used."""

    name: str = MISSING
    stages: dict[str, Any] = option({}, "stage: its arguments, in order (docs/transforms.md)")
