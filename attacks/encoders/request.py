"""The request for an encoder, and what all families share."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attacks.encoders.image_encoder import Origin
from attacks.encoders.weights import TORCH_FILES

#: Random weights, to test whether everything runs.
RANDOM = "random"
#: The library's default weights.
PRETRAINED = "pretrained"
#: What `output` may be, and the families that answer features where nothing else is said.
FEATURES, LOGITS, PROBABILITIES = "features", "logits", "probabilities"
EMBEDDERS = ("torchvision", "timm", "open_clip", "transformers", "diffusers")


@dataclass(frozen=True)
class Request:
    """An encoder as a configuration names it.

    Args:
        family: "torchvision", "timm", ...
        model: a name of the library, a folder, or a file, depending on the family.
        weights: "pretrained", "random" (the same ones every time), a tag of the library's, or a file of weights.
        preprocess: fields of `Preprocess` that differ from the library's.
        pool: which of a transformer's tokens become the features; None for the model's default.
        output: "features" or "logits", of a package perhaps "probabilities"; None for the family's default.
        tag: of a file for open_clip: the tag that its weights are of.
    """

    family: str
    model: str
    weights: str = PRETRAINED
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None
    output: str | None = None
    tag: str | None = None

    @property
    def file(self) -> Path | None:
        """The file of weights, if `weights` names one: by its suffix, a folder in its path, or because it exists. A
        folder with the name of a tag is none."""
        path = Path(self.weights).expanduser()
        is_file = path.suffix.lower() in (".safetensors", *TORCH_FILES) or "/" in self.weights or path.is_file()
        return path if is_file and self.weights not in (RANDOM, PRETRAINED) else None

    @property
    def needs_no_download(self) -> bool:
        """Whether its weights are random, or a file."""
        return self.weights == RANDOM or self.file is not None

    @property
    def origin(self) -> Origin:
        output = self.output or (FEATURES if self.family in EMBEDDERS else None)
        return Origin(self.family, self.model, self.weights, self.file, output)

    @property
    def has_head(self) -> bool:
        """Whether the network answers its classifier's logits. Raises ValueError for another `output`."""
        if self.output not in (None, FEATURES, LOGITS):
            raise ValueError(f"`encoder.output` must be {FEATURES} or {LOGITS}; got {self.output!r}")
        return self.output == LOGITS

    def resolve(self, tag: str | None) -> Origin:
        """The origin with the library's present `tag` in place of "pretrained": it may change between releases."""
        origin = self.origin
        return replace(origin, weights=tag) if tag and self.weights == PRETRAINED else origin


def flat(answer: Any) -> Any:
    """(N,D,1,1), (N,C,H,W) or (N,T,D) -> (N,D); anything else unchanged, for `ImageEncoder` to check."""
    return answer.flatten(1) if isinstance(answer, Tensor) and answer.dim() > 2 else answer


def whole_file(request: Request) -> Path:
    """The file that `encoder.model` names, for families whose weights come with it.

    Raises:
        FileNotFoundError: no such file, or a folder.
        ValueError: an empty one, or a request for other weights.
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
    """Raise ValueError for a request with weights: they come with the model."""
    if request.weights != PRETRAINED:
        raise ValueError(f"`weights` is not for {request.family}: its model brings it along; got {request.weights!r}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its class where the message is empty."""
    return (next(iter(str(error).strip().splitlines()), "") or type(error).__name__)[:200]


Family = Callable[[Request], nn.Module]
Result = TypeVar("Result")


def with_seed(build: Callable[[], Result]) -> Result:
    """The result of `build`, with random weights that are the same every time; torch's generators are unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` would seed those of GPUs too
        return build()


#: What helps where weights cannot be fetched.
WEIGHTS = "a local file or folder (encoder.weights=FILE), or encoder.weights=random to see whether all runs"


@contextmanager
def fetching(
    label: str, alternative: str = WEIGHTS, unusable: type[Exception] | tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Report any failed download in one line. The block should hold the library's call only, because a missing file
    is an OSError too. The hub's client logs two warnings for each attempt; they are silenced.

    Args:
        label: the object to fetch, for the message.
        alternative: what to give without a network.
        unusable: the library's errors for an object that it has, but cannot use.

    Raises ValueError: with the object, and the alternative or the reason why it cannot be used.
    """
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except _FAULTS:
        raise
    except Exception as error:  # each library has its own errors, and most wrap others
        reason = first_line(error)
        if any(isinstance(e, OSError) or type(e).__module__.partition(".")[0] in _CLIENTS for e in _chain(error)):
            message = f"{label} could not be fetched ({reason}): without a network give {alternative}"
            raise ValueError(message) from None
        if isinstance(error, unusable):
            raise ValueError(f"{label} cannot be used ({reason})") from None
        raise
    finally:
        log.setLevel(level)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, as a traceback shows them: not beyond a `from None`."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


#: Bugs, even where they are raised while a failed download is handled.
_FAULTS = (TypeError, AttributeError, NameError, LookupError, AssertionError)


#: Packages whose errors mean a failed download.
_CLIENTS = (
    *("huggingface_hub", "requests", "httpx", "httpx2", "httpcore"),
    *("urllib3", "urllib", "http", "ssl", "socket"),
)
