"""A view that is not finite, as a value and as a file: all that it takes to see it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from attacks.encoders.tree import Tree
from attacks.runtime import values as kept
from transforms import Layer, Scene
from transforms.sampling.outline import Outline

#: The file in a run directory; what `kept.read` asks for.
NAME, KEY = "fault.safetensors", "a view that is not finite, 1"


@kept.stored("fault")
class Fault(NamedTuple):
    """A view that is not finite, as far as it can be held by a file. `picture` and `view` count from 0, in the attack
    or the bank that it happened in; `shown` are the layers as the view saw them; `pulled` the gradient of its loss by
    the encoder's features, part by part."""

    where: str
    doing: str  # "attack", "evaluate"
    step: int | None
    picture: int
    view: int
    values: dict[str, float]
    stages: tuple[str, ...]
    u: Tensor
    image: Tensor
    delta: Tensor | None
    anchor: Tree
    shown: tuple[dict[str, Any], ...]
    size: tuple[int, int]
    loss: Tensor
    pulled: tuple[Tensor, ...]

    def words(self) -> str:
        """In a line, without step and command."""
        values = ", ".join(f"{name} {value:.6g}" for name, value in self.values.items())
        return (
            f"NaN or inf begins at {self.where}, in view {self.view} of image {self.picture}"
            f"{f' ({values})' if values else ''}"
        )

    def scene(self) -> Scene:
        """What was seen. Raises TypeError or ValueError where a file holds something else."""
        layers = []
        for each in self.shown:
            outline = None if each["outline"] is None else Outline(each["outline"])
            layers.append(Layer(each["pixels"], each["alpha"], each["pull"], (), outline))
        return Scene(tuple(layers), self.size)


def layers_of(scene: Scene) -> tuple[dict[str, Any], ...]:
    """The layers of a scene of one picture, as `Fault.shown` holds them. (What bends a layer is a stage.)"""
    return tuple(
        {
            "pixels": layer.pixels.detach(),
            "alpha": layer.alpha,
            "pull": layer.pull,
            "outline": None if layer.outline is None else layer.outline.corners,
        }
        for layer in scene.layers
    )


class NotFinite(FloatingPointError):
    """A loss or a gradient is not finite. `fault` is None where no view alone shows it; `write` says in which file
    the view is kept."""

    def __init__(self, words: str, fault: Fault | None = None) -> None:
        super().__init__(words)
        self.said, self.fault = words, fault
        self.path: Path | None = None

    def __str__(self) -> str:
        if self.path is None:
            return self.said
        at = self.path.parent if self.path.name == NAME else self.path
        return f"{self.said}; see that view again: python scripts/replay_view.py {shlex.quote(str(at))}"


def write(directory: Path, error: NotFinite, name: str = NAME) -> Path | None:
    """Keep the view of an error in a run directory, and let the error tell the command that shows it again. None
    where there is no such view."""
    if error.fault is None:
        return None
    kept.write(directory / name, error.fault, KEY)
    error.path = directory / name
    return error.path


def read(path: Path) -> Fault:
    """What `write` has written. Raises FileNotFoundError or ValueError in one line."""
    if not path.is_file():
        raise FileNotFoundError(f"`{path}` does not exist: no view of this run was found not to be finite")
    try:
        found = kept.read(path, KEY)
    except ValueError as error:
        reason = str(error).partition(f"cannot use {path}: ")[2].partition("; remove it")[0] or str(error)
        raise ValueError(f"`{path}` does not hold a view: {reason}") from None
    if not isinstance(found, Fault) or not all(map(_fits, found, _KINDS)):
        raise ValueError(f"`{path}` does not hold a view: its content is not what a run writes there")
    return found


#: What the fields hold, in words.
_KINDS = tuple(str(getattr(kind, "__forward_arg__", kind)) for kind in Fault.__annotations__.values())


def _fits(value: Any, said: str) -> bool:
    """Whether what a file holds is of the kind that a field has: a stranger may have written it."""
    if said == "Tree":
        return True
    kinds = {"str": str, "int": int, "Tensor": Tensor, "None": type(None), "tuple": tuple, "dict": dict}
    if not isinstance(value, tuple(kinds[each.partition("[")[0]] for each in said.split(" | "))):
        return False
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, dict):
        return all(isinstance(n, str) and n.isprintable() and isinstance(v, float) for n, v in value.items())
    inner = {"tuple[str, ...]": str, "tuple[Tensor, ...]": Tensor, "tuple[int, int]": int}.get(said)
    return inner is None or not isinstance(value, tuple) or all(isinstance(each, inner) for each in value)
