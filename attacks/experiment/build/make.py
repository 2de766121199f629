"""A part from the keys of a configuration: each key is the argument of the same name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def make(part: Callable[..., T], node: Any, group: str, /, **given: Any) -> T:
    """`part` with those keys of a `node` that it has an argument for, and what the run itself gives it.

    Raises ValueError with the key and its group, `optimiser.momentum`, where the part refuses a value.
    """
    keys = {name: getattr(node, name) for name in taken(part, type(node)) if name not in given}
    try:
        return part(**given, **keys)
    except (ValueError, TypeError) as error:
        if isinstance(error, TypeError) and not isinstance(part, type):
            raise
        raise ValueError(prefixed(str(error), node, group)) from None


def taken(part: Callable[..., Any], schema: type) -> list[str]:
    """The keys of a schema that a part has an argument for, in the part's order."""
    known = {field.name for field in fields(schema)} - {"name"}
    return [name for name in inspect.signature(part).parameters if name in known]


def prefixed(message: str, node: Any, group: str) -> str:
    """A message of a part, with the group before the keys that it names."""
    known = "|".join(field.name for field in fields(node))
    return re.sub(rf"`({known})`", rf"`{group}.\1`", message)
