"""How an encoder is run. None of it changes what is computed, but for the rounding of a lower precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Layout = Literal["contiguous", "channels_last"]
Precision = Literal["float32", "mixed", "bfloat16", "float16"]

LAYOUTS = ("contiguous", "channels_last")
PRECISIONS = ("float32", "mixed", "bfloat16", "float16")


@dataclass(frozen=True)
class Decision:
    """The five settings of an engine; the defaults leave an encoder as it came.

    Args:
        layout: how a batch lies in memory: NCHW, or NHWC ("channels_last"), which most convolutions prefer.
        precision: "float32" keeps the encoder's own dtype; "mixed" keeps it in the forward pass and computes the
            backward pass of convolutions and linear layers in bfloat16; "bfloat16" and "float16" run both passes of
            everything after the preprocessing under autocast, float16 with a scaled loss.
        fold: batch norms become part of the convolution or linear layer before them.
        compile: `torch.compile`; the first pass of each shape takes a minute or more.
        chunk: most views in one pass, over all images.

    Raises:
        ValueError: a value outside these.
    """

    layout: Layout = "contiguous"
    precision: Precision = "float32"
    fold: bool = False
    compile: bool = False
    chunk: int = 48

    def __post_init__(self) -> None:
        for name, known in (("layout", LAYOUTS), ("precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f"`{name}` must be one of {', '.join(known)}; got {getattr(self, name)!r}")
        for name in ("fold", "compile"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"`{name}` must be true or false; got {getattr(self, name)!r}")
        if type(self.chunk) is not int or self.chunk < 1:
            raise ValueError(f"`chunk` must be a whole number of views, at least 1; got {self.chunk!r}")

    def settings(self) -> list[str]:
        """The words that ask for exactly this on a command line: "engine.layout=channels_last", ..."""
        return [f"engine.{name}={str(value).lower()}" for name, value in self.to_dict().items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Decision:
        """The inverse of `to_dict`; what is left out has its default. Raises ValueError for an unknown name."""
        for name in values:
            if name not in SETTINGS:
                raise ValueError(f"`{name}` is no setting of an engine; known are {', '.join(SETTINGS)}")
        return cls(**values)


SETTINGS = tuple(f.name for f in fields(Decision))
