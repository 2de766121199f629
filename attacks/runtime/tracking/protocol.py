"""What a tracker can do, and what all of them need."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

#: Figures by name; None where there is none.
Values = Mapping[str, float | None]


class Tracker(Protocol):
    """Where the course of a run is written. A tracker is told, it never asks: it cannot change a run."""

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        """Figures of one step of an arm; those that are None, NaN or infinite are left out (JSON says null)."""

    def log_image(self, name: str, image: Tensor) -> None:
        """A picture (3,H,W) in [0,1], as 8 bits."""

    def log_artifact(self, path: Path) -> None:
        """A file of the run directory."""

    def close(self, failed: bool = False) -> None:
        """The end. `failed`: of a run that did not come to its own."""


def named(values: Values, arm: str) -> dict[str, float]:
    """The figures that are numbers, by `arm/name`."""
    found = {name: float(value) for name, value in values.items() if value is not None}
    return {f"{arm}/{name}" if arm else name: value for name, value in found.items() if math.isfinite(value)}


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a configuration by dotted name."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def picture(image: Tensor) -> Image.Image:
    """(3,H,W) in [0,1] as a picture of 8 bits."""
    from PIL import Image

    levels = (image.detach().float().clamp(0, 1) * 255).round().byte()
    return Image.fromarray(levels.permute(1, 2, 0).cpu().numpy())


def library(name: str, package: str, extra: str) -> Any:
    """The module `name`, imported on first use. Raises ValueError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"`tracker={extra}` needs the package {package}, which cannot be imported ({error}): "
            f'pip install "viewproof[{extra}]"'
        ) from None
