"""How an encoder is run. Apart from the rounding of a lower precision, the results are the same."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

Layout = Literal["contiguous", "channels_last"]
Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Decision:
    """The four settings of an engine; the defaults leave an encoder as it is.

    Args:
        layout: how a batch lies in memory: NCHW, or NHWC ("channels_last"), which most convolutions prefer.
        precision: "float32" keeps the encoder's own dtype; "tf32" rounds the factors of its products and convolutions
            to 11 bits, on a GPU that can; "bfloat16" runs both passes of everything after the preprocessing under
            autocast.
        fold: batch norms become part of the convolution or linear layer before them.
        chunk: most views in one pass, over all images.

    Raises ValueError: a value outside these.
    """

    layout: Layout = "contiguous"
    precision: Precision = "float32"
    fold: bool = False
    chunk: int = 48

    def __post_init__(self) -> None:
        for name, choices in (("layout", get_args(Layout)), ("precision", get_args(Precision))):
            if getattr(self, name) not in choices:
                raise ValueError(f"`{name}` must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        if type(self.fold) is not bool:
            raise ValueError(f"`fold` must be true or false; got {self.fold!r}")
        if type(self.chunk) is not int or self.chunk < 1:
            raise ValueError(f"`chunk` must be a whole number of views, at least 1; got {self.chunk!r}")

    @property
    def exact(self) -> "Decision":
        """The decision in float32, which judges a run again."""
        return replace(self, precision="float32")

    def settings(self) -> list[str]:
        """The same as arguments of a command line: "engine.layout=channels_last", ..."""
        return [f"engine.{name}={str(value).lower()}" for name, value in self.to_dict().items()]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Decision":
        """The inverse of `to_dict`, with defaults for missing names. Raises ValueError for an unknown name."""
        for name in values:
            if name not in SETTINGS:
                raise ValueError(f"`{name}` is no setting of an engine; known are {', '.join(SETTINGS)}")
        return cls(**values)


SETTINGS = tuple(f.name for f in fields(Decision))


class Trial(NamedTuple):
    """One step of the estimator: `grad` (N,...), the gradient of each image's mean loss, and `snr` (N,), the power
    ratio ||E g||^2 / E||g - E g||^2 of that mean; NaN where it is unknown."""

    grad: Tensor
    snr: Tensor


@dataclass(frozen=True)
class Measurement:
    """One candidate. What was not measured is None."""

    name: str  # "start", "channels_last", "fold", "bfloat16", "chunk 16", ...
    settings: dict[str, Any]  # as `Decision.to_dict`
    ms: float | None = None  # milliseconds per view, forward and backward; the median of its rounds
    rounding: float | None = None  # error of the gradient against float32: root mean square over images of L2 norms
    noise: float | None = None  # the sampling noise of the step in the same unit
    ratio: float | None = None  # (rounding / noise)^2, what rounding adds to the noise's power
    taken: bool = False  # whether it became the best
    why: str = ""  # the verdict as text

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        figures = [] if self.ms is None else [f"{self.ms:.3g} ms/view"]
        if self.rounding is not None:
            noise = "unknown" if self.noise is None else f"{self.noise:.2g}"
            share = "" if self.ratio is None else f" ({self.ratio:.1%} of its power)"
            figures.append(f"rounding {self.rounding:.2g}, sampling noise {noise}{share}")
        return f"{'+' if self.taken else '-'} {self.name}: {', '.join(figures)}{'; ' if figures else ''}{self.why}"


class Choice(NamedTuple):
    """The settings chosen, and the measurements that led there, in order."""

    decision: Decision
    measurements: tuple[Measurement, ...]


def describe(choice: Choice) -> list[str]:
    """Lines for a terminal."""
    return [*map(str, choice.measurements), "engine: " + " ".join(choice.decision.settings())]
