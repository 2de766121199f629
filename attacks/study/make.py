"""Make a part from the keys of a configuration: each key is the argument of the same name."""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from attacks.schema import groups

T = TypeVar("T")


def make(part: Callable[..., T], node: Any, group: str, /, **arguments: Any) -> T:
    """Call `part` with the keys of a `node` that are its arguments, and with `arguments`. Raises ValueError
    with the full key, such as `optimiser.momentum`, if the part refuses a value."""
    keys = {name: getattr(node, name) for name in argument_keys(part, type(node)) if name not in arguments}
    try:
        return part(**arguments, **keys)
    except (ValueError, TypeError) as error:
        if isinstance(error, TypeError) and not isinstance(part, type):
            raise
        names = "|".join(field.name for field in fields(node))  # the group stands before each key of the node
        raise ValueError(re.sub(rf"`({names})`", rf"`{group}.\1`", str(error))) from None


def declared_class(group: str, name: str) -> Any:
    """The class of a part that declares its keys itself (see `groups.DECLARED`)."""
    return class_at(groups.DECLARED[group][name])


def class_at(place: str) -> Any:
    """The class or function at `place`, such as "attacks.objectives.bits.Bits"."""
    module, _, kind = place.rpartition(".")
    return getattr(importlib.import_module(module), kind)


def argument_keys(part: Callable[..., Any], schema: type) -> list[str]:
    """The keys of a schema that are arguments of a part, in the part's order."""
    names = {field.name for field in fields(schema)} - {"name"}
    return [name for name in inspect.signature(part).parameters if name in names]
