"""A view that is not finite, as a value and as a file that shows it again."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from attacks.runtime import values
from attacks.runtime.values import stored

#: The file in a run directory, and its key.
NAME, KEY = "fault.safetensors", "a view that is not finite, 2"


@stored("fault.line")
class Line(NamedTuple):
    """A value on the way to the loss: its least and greatest finite number, how many numbers are not finite, and the
    L2 norm of the loss's gradient there (NaN or inf: that is not finite; None: there is none)."""

    name: str
    least: float
    greatest: float
    bad: int
    slope: float | None = None


@stored("fault")
class Fault(NamedTuple):
    """A view that is not finite: where that begins, in the picture and view with these numbers (of the batch of an
    attack, or of a bank), the view's physical values, its coordinates `u` (1,dims), what each stage gives, and what
    the encoder sees (1,C,h,w)."""

    where: str
    doing: str  # "attack" or "evaluate"
    step: int | None
    picture: int
    view: int
    values: dict[str, float]
    u: Tensor
    lines: tuple[Line, ...]
    shown: Tensor

    def sentence(self) -> str:
        """The fault in one line, without step and command."""
        values = ", ".join(f"{name} {value:.6g}" for name, value in self.values.items())
        return (
            f"NaN or inf begins at {self.where}, in view {self.view} of image {self.picture}"
            f"{f' ({values})' if values else ''}"
        )


class NotFinite(FloatingPointError):
    """A loss or a gradient is not finite: the view that shows it alone, if one does, and the file of `write`."""

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.path: Path | None = None

    def __str__(self) -> str:
        message = super().__str__()
        if self.path is None:
            return message
        run = self.path.parent if self.path.name == NAME else self.path
        return f"{message}; see that view again: viewproof replay {shlex.quote(str(run))}"


def write(directory: Path, error: NotFinite, name: str = NAME) -> Path | None:
    """Keep the view of an error in a run directory, and name it in the error. Returns the file, or None."""
    if error.fault is None:
        return None
    values.write_values(directory / name, error.fault, KEY)
    error.path = directory / name
    return error.path


def read_fault(path: Path) -> Fault:
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: this run met no view that is not finite")
    with suppress(ValueError, TypeError, AttributeError):
        fault: Fault = values.load_values(path, KEY)
        if _valid(fault):
            return fault
    raise ValueError(f"`{path}` does not hold a view of a run of this version")


def _valid(fault: Fault) -> bool:
    """Whether a file's content is printable and of the right types: anybody may have written it."""
    texts = [fault.where, fault.doing, *fault.values, *(line.name for line in fault.lines)]
    numbers = [*fault.values.values(), *(x or 0.0 for line in fault.lines for x in line[1:])]
    return (
        all(isinstance(text, str) and text.isprintable() for text in texts)
        and all(isinstance(number, int | float) for number in numbers)
        and all(type(count) is int for count in (fault.picture, fault.view, fault.step or 0))
        and len(fault.u) == len(fault.shown) == 1
        and fault.shown.dim() == 4
    )
