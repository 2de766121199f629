"""Encoders by name, each with its own preprocessing in the graph."""

import importlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from attacks.encoders.contract import probe
from attacks.encoders.engine.native_precision import NATIVE, run_in
from attacks.encoders.phash import Phash
from attacks.encoders.pocket import read_widths, untrained
from attacks.encoders.request import PRETRAINED, Family, Request
from attacks.encoders.weights import fill, read_state, unwrapped_state
from attacks.schema.encoder import BLACK_BOXES, ENCODERS, PARTICULAR

POCKET_WEIGHTS = Path(__file__).parents[1] / "data" / "pocket.safetensors"
"""The path of the weights of the pocket encoder that ship with the package.

Examples:
    >>> from attacks.encoders import POCKET_WEIGHTS
    >>> POCKET_WEIGHTS.name
    'pocket.safetensors'
"""

#: Encoders that are no family. Every other encoder of the schema with a network is one: the module NAME_models of
#: `families/` has its `load`, and is imported on first use because it imports the library.
BUILT_IN = ("pocket", "phash")
FAMILIES = tuple(name for name in ENCODERS if name not in (*BUILT_IN, *BLACK_BOXES))
"""The names that `load_encoder` takes with a model, each that of a library or of a kind of file.

Examples:
    >>> from attacks.encoders import FAMILIES
    >>> "timm" in FAMILIES, "pocket" in FAMILIES
    (True, False)
"""


def load_encoder(
    name: str = "pocket",
    model: str | None = None,
    *,
    weights: str | Path | None = None,
    preprocess: Mapping[str, Any] | None = None,
    precision: str = NATIVE,
    device: str = "cpu",
    **particular: str | None,
) -> nn.Module:
    """An encoder in evaluation mode with frozen weights: (N,3,H,W) in [0,1] -> (N,D).

    Args:
        name: "pocket", "phash", or a family of `FAMILIES`.
        model: which of the family: a name, a folder or a file (docs/encoders.md).
        weights: "pretrained", "random" (to try out a configuration), a name of the library's, or a file; None for the
            first. Of the pocket encoder: a safetensors file of any width, or None for the shipped one.
        preprocess: fields of `Preprocess` that differ from the library's.
        precision: "own" runs half-precision weights as they are, "float32" widens them.
        device: where it runs.
        particular: what one family alone has, None for its default: `pool` of transformers ("pooled", "cls",
            "mean"), `output` of pypi ("features", "logits", "probabilities"), `tag` of a file for open_clip.

    Raises:
        ValueError, FileNotFoundError: in one line: an unknown name, a library that is not installed, weights that do
            not fit or cannot be fetched.

    Examples:
        >>> import torch
        >>> from attacks import load_encoder
        >>> encoder = load_encoder("pocket")
        >>> encoder(torch.zeros(2, 3, 100, 120)).shape, encoder.training
        (torch.Size([2, 128]), False)
        >>> load_encoder("phash")(torch.zeros(2, 3, 100, 120)).shape
        torch.Size([2, 64])
    """
    if name not in (*BUILT_IN, *FAMILIES):
        library = next((family for family, models in _models() if str(name).split(".")[0] in models), None)
        fix = "any module may be passed to `attack` itself"
        fix = f'write load_encoder("{library}", "{name}")' if library else fix
        raise ValueError(f"`encoder` must be one of pocket, phash, {', '.join(FAMILIES)}; got {name!r} ({fix})")
    for key, value in particular.items():
        if key not in PARTICULAR:
            raise TypeError(f"load_encoder() got an unexpected keyword argument {key!r}")
        if value is not None and name not in PARTICULAR[key]:
            families = " and ".join(PARTICULAR[key])
            raise ValueError(f"`{key}` belongs to {families}; {name} has none, got {value!r}: leave it out")
    if not isinstance(preprocess or {}, Mapping):
        raise ValueError(
            f"`preprocess` must be the fields of a Preprocess that differ, such as {{'size': 224}}; got a "
            f"{type(preprocess).__name__}: write a dict, or attacks.encoders.with_preprocess(network, preprocess)"
        )
    if name in FAMILIES:
        if not model:
            raise ValueError(f"`encoder.model` says which of {name}: give it a name, see docs/encoders.md")
        request = Request(name, model, str(weights or PRETRAINED), dict(preprocess or {}), **particular)
        load: Family = importlib.import_module(f"attacks.encoders.families.{name}_models").load
        try:
            encoder = load(request)
        except (ValueError, OSError):
            raise
        except Exception as error:  # a library can raise anything for a broken or hostile file
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"encoder {name}:{model} cannot be made ({type(error).__name__}: {reason}); is what its files "
                "say whole and true? HYDRA_FULL_ERROR=1 shows where it fails"
            ) from error
        encoder = run_in(encoder, precision).to(device)
        probe(encoder)
        return encoder
    if model is not None or preprocess:
        raise ValueError(f"`model` and `preprocess` belong to the families; {name} has neither")
    if name == "phash":
        if weights is not None:
            raise ValueError(f"`weights` is for encoders that have some; phash has none, got {str(weights)!r}")
        return Phash().to(device)
    path = POCKET_WEIGHTS if weights is None else weights
    state = unwrapped_state(read_state(path))
    pocket = untrained(widths=read_widths(state))
    fill(pocket, state, f"weights `{path}`")
    return pocket.float().eval().requires_grad_(False).to(device)


def _models() -> Iterator[tuple[str, Collection[str]]]:
    """The names of models of the libraries that are installed, by family."""
    with suppress(ImportError):
        yield "torchvision", importlib.import_module("torchvision.models").list_models()
    for family in ("timm", "open_clip"):
        with suppress(ImportError):
            yield family, importlib.import_module(family).list_models()
