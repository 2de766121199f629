"""The types that files of results and states may contain, each under a tag that outlives moves and renames."""

from collections.abc import Callable
from typing import TypeVar

#: Tag -> type that a file may contain.
TYPES: dict[str, type] = {"list": list, "tuple": tuple}
Type = TypeVar("Type", bound=type)


def stored(tag: str) -> Callable[[Type], Type]:
    """Class decorator: files may contain this NamedTuple or dataclass, under `tag`. The tag outlives moves and
    renames of the class. Raises ValueError for a tag in use."""

    def register(cls: Type) -> Type:
        if tag in TYPES or tag in ("dict", "tensor"):
            raise ValueError(f"`stored`: the tag {tag!r} of {cls.__qualname__} is in use; choose another")
        TYPES[tag] = cls
        return cls

    return register
