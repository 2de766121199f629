"""The encoders that a configuration can name, and the keys of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass
class Subject:
    """What every encoder can be given."""

    name: str = MISSING
    features: list[str] = field(default_factory=list)  # layers that answer instead, module or module:pool
    stochastic: bool = False  # dropout stays alive, and a defence draws from its ranges, anew for every view


@dataclass
class PocketEncoder(Subject):
    name: str = "pocket"
    weights: str | None = None  # a safetensors file; null for the shipped one


@dataclass
class PhashEncoder(Subject):
    name: str = "phash"


@dataclass
class LibraryEncoder(Subject):
    """A model of a library that offers many by name."""

    model: str = MISSING
    weights: str = MISSING  # pretrained, random, a name that the library knows, or a file
    preprocess: dict[str, Any] = field(default_factory=dict)  # what differs from what the library says of the model


@dataclass
class TransformersEncoder(LibraryEncoder):
    name: str = "transformers"
    pool: str | None = None  # pooled, cls, mean; null for what the model is meant for


@dataclass
class FileEncoder(Subject):
    """A model that is one file, or that a package makes: its weights come with it."""

    model: str = MISSING
    preprocess: dict[str, Any] = field(default_factory=dict)


@dataclass
class Defence:
    name: str = MISSING
    stages: dict[str, Any] = field(default_factory=dict)  # stage -> its arguments, in order, as of transforms


#: What stands before the encoder.
DEFENCES: dict[str, type] = dict.fromkeys(("none", "jpeg", "bits", "blur", "resize", "resize_pad"), Defence)
#: Choice -> its schema.
ENCODERS: dict[str, type] = {
    "pocket": PocketEncoder,
    "phash": PhashEncoder,
    **dict.fromkeys(("torchvision", "timm", "open_clip", "diffusers"), LibraryEncoder),
    "transformers": TransformersEncoder,
    **dict.fromkeys(("onnx", "torchscript", "plugin"), FileEncoder),
}
