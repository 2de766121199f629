"""Encoders from a module in Python, or from a file that holds architecture and weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import PRETRAINED, Request


def with_preprocess(
    network: nn.Module, preprocess: Preprocess, *, name: str = "mine", read: Callable[[Any], Tensor] | None = None
) -> ImageEncoder:
    """Any module as an encoder: (N,3,H,W) in [0,1], any size -> (N,D). The module itself is put in evaluation mode
    and frozen.

    Args:
        network: normalised pictures -> any output.
        preprocess: of a picture; print it to see.
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


def flat(answer: Any) -> Any:
    """(N,D,1,1), (N,C,H,W) or (N,T,D) -> (N,D); anything else unchanged, for `ImageEncoder` to check."""
    return answer.flatten(1) if isinstance(answer, Tensor) and answer.dim() > 2 else answer


def whole_file(request: Request) -> Path:
    """The file that `encoder.model` names, for families whose weights come with it.

    Raises:
        FileNotFoundError: no such file, or a folder.
        ValueError: an empty one, or a request for other weights or a pool.
    """
    refuse_extras(request)
    path = Path(request.model).expanduser()
    if not path.is_file():
        fault = "is a folder; name the file in it" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"`encoder.model`: {path} {fault} (paths are relative to {Path.cwd()})")
    if path.stat().st_size == 0:
        raise ValueError(f"`encoder.model`: {path} is an empty file: was the download cut off?")
    return path


def refuse_extras(request: Request) -> None:
    """Raise ValueError for a request with weights or a pool: both come with the model."""
    for key, is_given in (("weights", request.weights != PRETRAINED), ("pool", request.pool is not None)):
        if is_given:
            raise ValueError(
                f"`{key}` is not for {request.family}: its model brings it along; got {getattr(request, key)!r}"
            )
