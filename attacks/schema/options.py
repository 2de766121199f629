"""The declaration of a key of a configuration: its default, meaning, range and paper."""

import copy
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import field, fields, make_dataclass
from functools import partial
from inspect import formatannotation
from typing import Any, NamedTuple

from omegaconf import MISSING

#: The largest count that a configuration may hold: no machine finishes more.
LARGEST = 10**9


class Option(NamedTuple):
    """A key as documentation shows it. `low` and `high` bound a number that no part checks."""

    key: str
    type: str
    default: Any
    meaning: str
    range: str
    paper: str
    low: float | None
    high: float


def option(
    default: Any,
    meaning: str = "",
    *,
    range: str = "",  # noqa: A002
    paper: str = "",
    low: float | None = None,
    high: float = LARGEST,
) -> Any:
    """A field of a schema.

    Args:
        default: `MISSING` for a key that has to be given.
        meaning: one line.
        range: the values that are allowed, as text; the part that takes the value checks them.
        paper: where the value or the method comes from.
        low, high: the ends of a number that the run itself reads.
    """
    limit = range or ("" if low is None else f"at least {low:g}")
    limit += f", at most {high:,}" if high < LARGEST else ""
    metadata = {"meaning": meaning, "range": limit, "paper": paper, "low": low, "high": high}
    if isinstance(default, list | dict):
        return field(default_factory=partial(copy.deepcopy, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def variant(base: type, name: str, about: str, **defaults: Any) -> type:
    """A choice with the keys of `base`, a name and a description of its own, and some other defaults."""
    items: list[tuple[str, Any, Any]] = [("name", str, name)]
    for item in fields(base):
        if item.name in defaults:
            words = {key: item.metadata[key] for key in ("meaning", "range", "paper", "low", "high")}
            items.append((item.name, item.type, option(defaults[item.name], **words)))
    return make_dataclass(name, items, bases=(base,), namespace={"__doc__": about, "__module__": base.__module__})


def options(schema: type) -> list[Option]:
    """The keys of a schema in order, without `name` and without keys that are themselves schemas."""
    rows = []
    for item in fields(schema):
        if item.name == "name" or "meaning" not in item.metadata:
            continue
        default = item.default if item.default_factory is NO_DEFAULT else item.default_factory()
        rows.append(Option(item.name, _type(item.type), default, **item.metadata))
    return rows


def refuse_out_of_range(node: Any, prefix: str) -> None:
    """Raise ValueError, with the key, for a number of a node that is out of its declared range."""
    for item in options(type(node)):
        value = getattr(node, item.key)
        if item.low is not None and value is not None and not item.low <= value <= item.high:
            limit = f"at most {item.high:,}" if value > item.high else f"at least {item.low:g}"
            raise ValueError(f"`{prefix}{item.key}` must be {limit}; got {value}")


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else formatannotation(annotation).replace("typing.", "")
    return text.replace("dict[str, Any]", "mapping").replace("list[Any]", "list").replace("Any", "any")


__all__ = ["LARGEST", "MISSING", "Option", "option", "options", "refuse_out_of_range", "variant"]
