"""The encoders and defences that a configuration can name, and the keys of each. No torch."""

from dataclasses import dataclass
from typing import Any

from attacks.schema.options import MISSING, option, variant

PRECISION = "half-precision weights run as they are; float32 widens them"


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
    weights: str | None = option(None, "a safetensors file of this architecture, any width; null: the shipped one")
    precision: str = option("own", PRECISION, range="own, float32")


@dataclass
class ModuleConfig(EncoderConfig):
    """A module in memory, which is no choice of the command line."""

    name: str = "module"
    precision: str = option("own", PRECISION, range="own, float32")


def in_memory(node: EncoderConfig) -> ModuleConfig:
    """The configuration of a module that takes the place of the encoder `node`."""
    precision = getattr(node, "precision", ModuleConfig.precision)
    return ModuleConfig(features=list(node.features), stochastic=node.stochastic, precision=precision)


@dataclass
class LibraryConfig(EncoderConfig):
    """What a model of a library has."""

    model: str = option(MISSING, "the library's name of the model, a folder, or a name on the hub")
    weights: str = option("pretrained", "pretrained, random, a name that the library knows, or a file of weights")
    preprocess: dict[str, Any] = option({}, "what differs from the model's own preprocessing: {kernel: cv2_area}")
    precision: str = option("own", PRECISION, range="own, float32")


@dataclass
class ClassifierConfig(LibraryConfig):
    """What a model of a library has that has a classifier."""

    output: str | None = option(None, "features, which the classifier reads, or its logits; null: features")


@dataclass
class TransformersConfig(LibraryConfig):
    """A model of transformers (CLIP, SigLIP, DINOv2, DINOv3, ViT, BEiT), or the vision tower of a vision-language
    model: a folder, or a name on the hub."""

    name: str = "transformers"
    pool: str | None = option(None, "which tokens become the features: pooled, cls, mean; null: the model's own")


@dataclass
class OpenClipConfig(LibraryConfig):
    """The image tower of a model of open_clip: ViT-B-32; `weights` is a tag."""

    name: str = "open_clip"
    tag: str | None = option(None, "of a file of weights: the tag that they are of, whose preprocessing they have")


@dataclass
class FileConfig(EncoderConfig):
    """What a model has whose weights come with it."""

    model: str = option(MISSING, "the file, or the name of the plug-in")
    preprocess: dict[str, Any] = option({}, "size, mean, std, kernel, fit, crop, bgr: a file does not hold them")
    precision: str = option("own", PRECISION, range="own, float32")


@dataclass
class PackageConfig(FileConfig):
    """A network in a package of the extra `real`: the ImageNet classifiers lite0, lite1, lite2; open_nsfw."""

    name: str = "pypi"
    model: str = option(MISSING, "lite0, lite1, lite2 or open_nsfw")
    preprocess: dict[str, Any] = option({}, "what differs from the model's own preprocessing: {kernel: cv2_area}")
    output: str | None = option(None, "features or logits; of open_nsfw probabilities or features; null: the first")


@dataclass
class BlackBoxConfig(EncoderConfig):
    """What an encoder has that can only be asked."""

    model: str = option(MISSING, "module:function, in this folder or installed: uint8 (N,H,W,3) -> answers")
    answer: str = option(
        "vector", "of each picture: a vector, scores against a gallery, or 0/1", range="vector, scores, same"
    )


@dataclass
class CommandConfig(BlackBoxConfig):
    """A program that reads pictures and writes answers, asked without gradients (docs/black_box.md)."""

    name: str = "command"
    model: str = option(MISSING, "the command line; no shell reads it")
    timeout: float = option(30.0, "seconds for the whole answer to one picture", range="above 0")


@dataclass
class HTTPConfig(BlackBoxConfig):
    """An address that each picture is sent to, asked without gradients (docs/black_box.md)."""

    name: str = "http"
    model: str = option(MISSING, "the address: http://HOST/PATH or https://HOST/PATH")
    key: str | None = option(None, "the environment variable that holds the key, which is written nowhere")
    batch: int = option(1, "pictures of one request; above 1 in one JSON", low=1)
    rate: float | None = option(None, "requests in a second, at most", range="above 0")
    retries: int = option(5, "of a request without an answer, each after twice the time", range="at least 0")
    timeout: float = option(30.0, "seconds for a connection, and then for the whole answer", range="above 0")


@dataclass
class DefenceConfig:
    """Stages before the encoder; with encoder.stochastic=true ranges are drawn for each view, else their middle is
    used. Or stages before one of the views, whose ranges are always drawn."""

    name: str = MISSING
    stages: dict[str, Any] = option({}, "stage: its arguments, in order (docs/transforms.md)")
    before: str | None = option(None, "the stage of transforms behind them, such as one_of; null: the encoder")


@dataclass
class PanelConfig:
    """A rule over several views of each picture, which are drawn anew for each view of the attack."""

    name: str = MISSING
    stages: dict[str, Any] = option({}, "stage: its arguments, in order; they make the views (docs/defences.md)")
    views: int = option(8, "of a picture, besides itself; each is one more pass", range="at least 1")


@dataclass
class PluginPanelConfig(PanelConfig):
    """A rule of an installed package."""

    model: str = option(MISSING, "the name of its entry point")
    arguments: dict[str, Any] = option({}, "what it is made with")


@dataclass
class CounterattackConfig:
    """A move of the picture away from its own features, before it is encoded."""

    name: str = MISSING
    eps: str = option("4/255", "the largest change of a pixel", range="above 0, at most 1")
    step: str = option("1/255", "the length of a step", range="above 0, at most 1")
    steps: int = option(2, "each is a pass forward and back", range="at least 1")
    threshold: float = option(0.2, "pictures whose features noise moves less, as a share, are moved; of CLIP")


#: Choice -> its schema.
ENCODERS: dict[str, type] = {
    "pocket": PocketConfig,
    "transformers": TransformersConfig,
    "open_clip": OpenClipConfig,
    "pypi": PackageConfig,
    **{
        name: variant(base, name, about)
        for base, name, about in (
            (EncoderConfig, "phash", "The perceptual hash of PyPI's ImageHash: 64 numbers whose signs are the bits."),
            (ClassifierConfig, "torchvision", "A model of torchvision: the features that its head reads, or logits."),
            (
                ClassifierConfig,
                "timm",
                "A model of timm: vit_small_patch14_dinov2, convnext_base, ...: features or logits.",
            ),
            (LibraryConfig, "diffusers", "The latents of a VAE of diffusers: a folder, or a name on the hub."),
            (FileConfig, "onnx", "A network in an ONNX file, turned into torch's operations: ArcFace and others."),
            (FileConfig, "torchscript", "A TorchScript file, which is a program: only the command line may name it."),
            (FileConfig, "plugin", "An encoder of an installed package, with the entry point `viewproof.encoders`."),
            (BlackBoxConfig, "callable", "A function of your own, asked without gradients (docs/black_box.md)."),
        )
    },
    "command": CommandConfig,
    "http": HTTPConfig,
}
#: Keys of `load_encoder` -> the families that have them.
PARTICULAR = {"pool": ("transformers",), "output": ("pypi", "timm", "torchvision"), "tag": ("open_clip",)}
#: Encoders that can only be asked: what they answer has no gradient.
BLACK_BOXES = ("callable", "command", "http")
#: The optimiser that stands where none is chosen; and those that need no gradient, the first in its place where an
#: encoder can only be asked.
OPTIMISER = "wiener"
GRADIENT_FREE = ("nes_square", "square", "nes", "label_only")
#: Those of them whose views are the losses of a step.
SAMPLING = ("nes_square", "nes", "label_only")
#: Encoders that run a program or send pictures away, and which of the two: only the command line may choose one.
PROGRAMS = {
    "torchscript": "runs the program in a file",
    "callable": "runs your code",
    "command": "runs a program",
    "http": "sends pictures to an address",
}
