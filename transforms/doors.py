"""The one check of pictures, before whatever a user calls with them. What has been checked goes past it by
`unchecked`, so that a step of an attack never looks at the values again, which would wait for a GPU."""

import functools
import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
#: How far outside of [0,1] a value may lie: half a level of 8 bits, so that a file holds the same picture; noise in
#: encoders; in functions that clamp or are linear the overshoot of a resize; in layers a perturbation.
HALF_LEVEL, NOISE, OVERSHOOT, DELTA = 0.5 / 255, 0.1, 0.4, 1.0

#: Whether no door looks at values (see `PastDoors`).
PAST: ContextVar[bool] = ContextVar("past the doors", default=False)


class PastDoors:
    """A block in which no door looks at values, for the doors within a user's module, which `unchecked` does not
    reach. Types and shapes are still checked."""

    def __enter__(self) -> None:
        self.token = PAST.set(True)

    def __exit__(self, *_: object) -> None:
        PAST.reset(self.token)


def checked(
    images: Any, name: str = "images", *, slack: float = HALF_LEVEL, channels: int | None = None, rank: int | None = 4
) -> Tensor:
    """`images`, if they are a tensor (N,C,H,W), floating, finite and within [0,1]. The host waits for their device.

    Args:
        name: of the argument, for errors.
        slack: how far outside of [0,1] values may lie; roundings of their dtype are allowed too, unless it is 0.
        channels: how many there must be; None for any number.
        rank: 3 for one picture (C,H,W); None for any shape.

    Raises:
        ValueError: in one line, with the fix.
    """
    formed(images, name, channels=channels, rank=rank)
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    if is_traced or PAST.get() or not images.numel():
        return images  # type: ignore[no-any-return]
    try:
        low, high = torch.stack(images.detach().aminmax()).cpu().tolist()  # one wait
    except RuntimeError:  # within torch.func.vmap, or on the device "meta": there are no values to look at
        return images  # type: ignore[no-any-return]
    spare = max(slack, 4 * torch.finfo(images.dtype).eps) if slack else 0.0
    if not (low >= -spare and high <= 1 + spare):  # so written, NaN is out of range too
        raise ValueError(f"`{name}` must lie in [0, 1]; got {low:g} to {high:g}: {_cause(low, high)}")
    return images  # type: ignore[no-any-return]


def formed(images: Any, name: str = "images", *, channels: int | None = None, rank: int | None = 4) -> None:
    """Raise ValueError unless `images` are a floating tensor (N,C,H,W), whatever its values: nothing is read."""
    axes = {3: "(C,H,W)", 4: "(N,C,H,W)"}.get(rank or 0, "of any shape").replace("C", str(channels or "C"))
    if not isinstance(images, Tensor):
        got, fix = f"a {type(images).__name__}", _fix_type(images)
        raise ValueError(f"`{name}` must be a floating tensor {axes} in [0, 1]; got {got}: {fix}")
    shape, fits = images.shape, rank is None or images.dim() == rank
    if fits and rank is not None:
        channels_at_end = rank == 4 and min(shape[1:3]) > 4 and shape[3] in (1, 3, 4)
        fits = not channels_at_end and channels in (None, shape[-3])
    if not fits or not images.is_floating_point():
        got, fix = str(images.dtype).removeprefix("torch."), _shape_fix(images, name, channels, rank)
        raise ValueError(f"`{name}` must be floating {axes} in [0, 1]; got {got} of shape {tuple(shape)}: {fix}")


def pixels_of(scene: Any) -> list[Any]:
    """The pictures of each layer of a scene; of anything else that itself."""
    return [layer.pixels for layer in scene.layers] if hasattr(scene, "layers") else [scene]


def door(
    slack: float = HALF_LEVEL, rank: int | None = 4, channels: int | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: the function checks its first argument (a method its second), the pictures, before all else."""

    def guard(function: Callable[P, R]) -> Callable[P, R]:
        first, *others = inspect.signature(function).parameters
        name, place = (others[0], 1) if first == "self" else (first, 0)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            for images in [kwargs[name]] if name in kwargs else args[place : place + 1]:
                for pixels in pixels_of(images):
                    spare = slack if pixels is images else DELTA
                    checked(pixels, name, slack=spare, rank=rank, channels=channels)
            return function(*args, **kwargs)

        wrapper.behind = function  # type: ignore[attr-defined]
        return wrapper

    return guard


def unchecked(call: Callable[P, R]) -> Callable[P, R]:
    """What is behind the door of a function, or of an object's call, for pictures that have been checked; anything
    without a door as it is."""
    if isinstance(call, FunctionType):
        return cast(Callable[P, R], getattr(call, "behind", call))
    behind = getattr(type(call).__call__, "behind", None)
    return call if behind is None else cast(Callable[P, R], functools.partial(behind, call))


class Doored:
    """A base of stages: one that is called alone checks its pictures. `Compose` checks them once for all stages."""

    def __init_subclass__(cls, slack: float = HALF_LEVEL, channels: int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls):
            cls.__call__ = door(slack, channels=channels)(cls.__call__)  # type: ignore[method-assign]

    @property
    def dims(self) -> int:
        return len(self.names)  # type: ignore[attr-defined]


def made(name: str, part: Any, example: str = "") -> None:
    """Raise ValueError where `part` is a class in place of an object."""
    if isinstance(part, type):
        write = example or f"{part.__name__}()"
        raise ValueError(f"`{name}` must be an object; got the class {part.__name__}: write {write}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if value not in (names := [*choices]):
        raise ValueError(f"`{name}` must be one of {', '.join(names)}; got {value!r}")


def _cause(low: float, high: float) -> str:
    """The likely cause of values out of range, and the fix."""
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        return "they are not finite; look for a division by 0, or a root or logarithm of 0, in what makes them"
    if low >= -0.25 and high <= 1.25:
        return "clamp what a resize or a sum has left outside, .clamp(0, 1)"
    if low < 0:
        return "leave out Normalize, which an encoder does by itself"
    if high <= 255:
        return "divide 8-bit values by 255"
    return "divide 16-bit values by 65535" if high <= 65535 else "divide them by the largest value of their file"


def _shape_fix(images: Tensor, name: str, channels: int | None, rank: int | None) -> str:
    """How a tensor becomes pictures."""
    shape, fix = images.shape, name
    if images.dim() == 2 and rank:
        fix += "[None]" * (rank - 2)
    elif images.dim() == 3 and rank:
        channels_at_end = shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)
        fix += (".permute(2, 0, 1)" if channels_at_end else "") + ("[None]" if rank == 4 else "")
    elif images.dim() == 4 and rank == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3):
        fix += ".permute(0, 3, 1, 2)"
    elif rank and images.dim() != rank:
        return f"it needs {rank} axes"
    elif channels == 3 and shape[-3] == 1:
        fix += ".expand(-1, 3, -1, -1)" if rank == 4 else ".expand(3, -1, -1)"
    elif channels is not None and shape[-3] != channels:
        return f"it needs {channels} channels"
    if not images.is_floating_point():
        fix += ".float()" if images.dtype == torch.bool else " / 255" if images.dtype.itemsize == 1 else " / 65535"
    return f"write {fix}"


def _fix_type(images: Any) -> str:
    """How something that is no tensor becomes pictures."""
    if isinstance(images, list | tuple):
        sizes = sorted({tuple(image.shape[-2:]) for image in images if isinstance(image, Tensor)})
        if len(sizes) > 1:
            examples = ", ".join(f"{height}x{width}" for height, width in sizes[:3])
            return f"they have {len(sizes)} sizes ({examples}): resize them to one, or make a call for each"
        return "write torch.stack(images)"
    if hasattr(images, "__array_interface__"):
        unit = " / 255" if getattr(images, "dtype", "uint8") == "uint8" else ""
        axes = ".permute(2, 0, 1)[None]" if getattr(images, "ndim", 3) == 3 else ".permute(0, 3, 1, 2)"
        array = "images" if hasattr(images, "dtype") else "numpy.array(images)"
        return f"write torch.from_numpy({array}){axes}{unit}"
    return "read files with attacks.data.images.load_image"
