"""A library's network with its preprocessing as one module."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attacks.encoders.engine.batch_norm import settle_batch_norm
from attacks.encoders.engine.native_precision import NativePrecision, native_dtype
from attacks.encoders.preprocess import Preprocess, preprocess_pictures
from attacks.encoders.tree import PictureModule, Texts, embedding, refuse_unready
from attacks.encoders.weights import fingerprint
from attacks.runtime.files import sha256


@dataclass(frozen=True)
class Origin:
    """Where an encoder comes from: the family and the model by their names in a configuration, and its weights: a
    file's path, "random", or their name in the library. `file` is where the weights were read from, if from a
    file; `output` is "features", "logits" or "probabilities", or None where nobody knows."""

    family: str
    model: str
    weights: str
    file: Path | None = None
    output: str | None = None

    def digest(self) -> str | None:
        return None if self.file is None else sha256(self.file)


class ImageEncoder(PictureModule):
    """(N,3,H,W) in [0,1], any size -> (N,D): `read(network(preprocess(images)))`, in evaluation mode and frozen.

    A network in half precision runs in it, behind the preprocessing, and its features are widened (see
    `attacks.encoders.engine.native_precision`).

    `print` shows the model and its preprocessing. Layers have the library's names (see
    `attacks.encoders.layers.named_layers`).

    Args:
        network: normalised pictures -> any output.
        preprocess: the library's preprocessing.
        origin: for reports.
        read: the network's output -> (N,D); None where it is that already.
        texts: the text tower of a two-tower model; None where there is none.

    Examples:
        >>> import torch
        >>> from attacks.encoders import ImageEncoder, Preprocess
        >>> from attacks.encoders.image_encoder import Origin
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, stride=8), torch.nn.Flatten())
        >>> preprocess = Preprocess(32, "pil_bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> encoder = ImageEncoder(network, preprocess, Origin("python", "tiny", "random"))
        >>> encoder.title, encoder(torch.zeros(2, 3, 100, 120)).shape, encoder.training
        ('python:tiny', torch.Size([2, 64]), False)
    """

    def __init__(
        self,
        network: nn.Module,
        preprocess: Preprocess,
        origin: Origin,
        *,
        read: Callable[[Any], Tensor] | None = None,
        texts: Texts | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.preprocess, self.origin, self.read, self.texts = preprocess, origin, read, texts
        self.native = NativePrecision(network, self.title)
        refuse_unready(network)
        self.eval().requires_grad_(False)
        settle_batch_norm(network)

    def forward(self, images: Tensor) -> Tensor:
        """Raises ValueError where the pictures are not (N,3,H,W), or the answer not (N,D); of a network in half
        precision and of a TorchScript program also where it refuses their dtype, device or shape."""
        answer: Any = self.native.call(self.network, self.native.enter(preprocess_pictures(self.preprocess, images)))
        if self.read is not None:
            answer = self.read(answer)
        answer = embedding(answer, f"the answer of encoder {self.title}", len(images), tokens=False)
        features: Tensor = self.native.leave(answer)
        return features

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "ImageEncoder":
        super()._apply(fn, recurse)
        self.native.dtype = native_dtype(self.network)
        return self

    @property
    def title(self) -> str:
        return f"{self.origin.family}:{self.origin.model}"

    def fingerprint(self) -> str:
        """The sha256 of the weights as they are in memory."""
        return fingerprint(self.network)

    def __repr__(self) -> str:
        rows = [
            *self.preprocess.lines(),
            ("network", f"{type(self.network).__name__}, {sum(p.numel() for p in self.parameters()):,} weights"),
            ("weights", self.origin.weights),
        ]
        return "\n".join([f"{self.title}", *(f"  {name:<10} {text}" for name, text in rows)])

    def __str__(self) -> str:  # a debugger calls `repr` often, and hashing a large network takes seconds
        return f"{self!r}, sha256 of the tensors {self.fingerprint()[:12]}"


def with_preprocess(
    network: nn.Module, preprocess: Preprocess, *, name: str = "mine", read: Callable[[Any], Tensor] | None = None
) -> ImageEncoder:
    """Any module as an encoder: (N,3,H,W) in [0,1], any size -> (N,D). The module itself is put in evaluation mode
    and frozen.

    Args:
        network: normalised pictures -> any output.
        preprocess: resize, crop and normalisation before it.
        name: for reports.
        read: the network's output -> (N,D); None where it is that already.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Preprocess, with_preprocess
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, stride=8), torch.nn.Flatten())
        >>> encoder = with_preprocess(network, Preprocess(32, "pil_bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        >>> encoder(torch.zeros(2, 3, 100, 120)).shape, encoder.training
        (torch.Size([2, 64]), False)
    """
    return ImageEncoder(network, preprocess, Origin("python", name, "as they are in memory"), read=read)
