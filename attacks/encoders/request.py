"""What a family of encoders is asked for, and what all families do alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from attacks.encoders.image_encoder import Origin
from attacks.encoders.weights import TORCH_FILES, load_weights

#: Weights that are none: for trying whether everything runs.
RANDOM = "random"
#: The weights that the library offers first.
PRETRAINED = "pretrained"


@dataclass(frozen=True)
class Request:
    """An encoder as a configuration names it.

    Args:
        family: "torchvision", "timm", ...
        model: a name that the library knows, a folder, or a file, as the family says.
        weights: "pretrained", "random" (the same ones every time), a tag of the library's, or a file of weights.
        preprocess: fields of `Preprocess` that differ from what the library says of the model.
        pool: which of a transformer's tokens become the features; None for what the model is meant for.
    """

    family: str
    model: str
    weights: str = PRETRAINED
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None

    @property
    def file(self) -> Path | None:
        """The file of weights, if `weights` names one: it ends as such files do, has a folder in it, or is there. A
        folder that happens to have the name of a tag is none."""
        path = Path(self.weights).expanduser()
        looks = path.suffix.lower() in (".safetensors", *TORCH_FILES) or "/" in self.weights or path.is_file()
        return path if looks and self.weights not in (RANDOM, PRETRAINED) else None

    @property
    def origin(self) -> Origin:
        return Origin(self.family, self.model, self.weights, self.file)

    def resolved(self, tag: str | None) -> Origin:
        """The origin, where "pretrained" is the library's `tag` today: another release may offer another."""
        origin = self.origin
        return replace(origin, weights=tag) if tag and self.weights == PRETRAINED else origin


Family = Callable[[Request], nn.Module]
Made = TypeVar("Made")


def unseen(build: Callable[[], Made]) -> Made:
    """What `build` makes, with random weights that are the same every time; torch's own generators are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` would seed those of GPUs too
        return build()


def fill_from(network: nn.Module, request: Request, *, without: Collection[str] = ()) -> bool:
    """Fill the network from the request's file, or leave it as it is for "random". False for anything else: the
    family then asks its library."""
    if request.file is not None:
        load_weights(network, request.file, without=without)
        return True
    return request.weights == RANDOM


@contextmanager
def fetching(
    what: str,
    instead: str = "a local file or folder (encoder.weights=FILE), or encoder.weights=random to see whether all runs",
) -> Iterator[None]:
    """Turn the many ways in which a download fails into one line. What is within should be the library's call alone:
    a missing file is an OSError too. The hub's client logs two warnings for each of its attempts; the line is enough.

    Args:
        what: is fetched.
        instead: what to give without a network.

    Raises:
        ValueError: with what was wanted, and what else there is.
    """
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except _FAULTS:
        raise
    except Exception as error:  # each library has errors of its own, and most wrap others
        if not any(isinstance(e, OSError) or type(e).__module__.partition(".")[0] in _CLIENTS for e in _chain(error)):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{what} could not be fetched ({reason[:200]}): without a network give {instead}") from None
    finally:
        log.setLevel(level)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it, as a traceback would show them: not beyond a `from None`."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


#: Faults of a program, though it may have been handling a failed download when it made them.
_FAULTS = (TypeError, AttributeError, NameError, LookupError, AssertionError)


_CLIENTS = (
    "huggingface_hub",
    "requests",
    "httpx",
    "httpx2",
    "httpcore",
    "urllib3",
    "urllib",
    "http",
    "ssl",
    "socket",
)
