"""The declaration of a key of a configuration: its default, meaning, range and paper. No torch."""

import ast
import copy
import inspect
from collections.abc import Iterator
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import field, fields, make_dataclass
from functools import cache, partial
from inspect import formatannotation
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import MISSING as MISSING

ROOT = Path(__file__).resolve().parents[2]
#: The files of presets and choices.
CONFIGS = ROOT / "configs"
#: Types of values in a configuration, where another part is its name.
PLAIN = frozenset(("bool", "int", "float", "str", "list", "dict", "Any", "None", "Callable"))
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
        low, high: of a number that the run itself reads: it must lie in [low, high].
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
    changed_fields = [item for item in fields(base) if item.name in defaults]
    items += [(item.name, item.type, option(defaults[item.name], **item.metadata)) for item in changed_fields]
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


def class_schema(name: str, place: str, bases: tuple[type, ...] = ()) -> type:
    """The schema of the choice `name` of the class at `place` ("attacks.objectives.bits.Bits"), read without torch.
    Its keys are those of the schemas `bases`, then the fields of the class, and of its bases in the same file, that
    are declared with `option` and literals."""
    kind, classes = place.rpartition(".")[2], _classes(place)
    about = inspect.cleandoc(ast.get_docstring(classes[kind]) or "").partition("\n\n")[0]
    fields = [("name", str, name), *declared_fields(place)]
    return make_dataclass(kind, fields, bases=bases, namespace={"__doc__": about, "__module__": __name__})


@cache
def _classes(place: str) -> dict[str, ast.ClassDef]:
    path = ROOT.joinpath(*place.split(".")[:-1]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def declared_fields(place: str) -> Iterator[tuple[str, Any, Any]]:
    """The keys that the class at `place` declares: name, type and field, read without torch."""
    (module, _, kind), classes = place.rpartition("."), _classes(place)
    for base in map(ast.unparse, classes[kind].bases):
        if base in classes:
            yield from declared_fields(f"{module}.{base}")
    for item in classes[kind].body:
        call = item.value if isinstance(item, ast.AnnAssign) else None
        if isinstance(item, ast.AnnAssign) and isinstance(call, ast.Call) and ast.unparse(call.func) == "option":
            arguments = [ast.literal_eval(argument) for argument in call.args]
            keywords = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            words = [(word, word.partition("[")[0]) for word in ast.unparse(item.annotation).split(" | ")]
            types = ["str" if kind == "Callable" else word for word, kind in words if kind in PLAIN]
            yield ast.unparse(item.target), " | ".join(types), option(*arguments, **keywords)
