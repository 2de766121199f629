"""The schema of a part that declares its keys in its own class. It is read from the source, without torch."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attacks.schema.options import option

ROOT = Path(__file__).resolve().parents[2]
#: The files of presets and choices.
CONFIGS = ROOT / "configs"
#: Types of values in a configuration, where another part is its name.
PLAIN = frozenset(("bool", "int", "float", "str", "list", "dict", "Any", "None", "Callable"))


def class_schema(name: str, place: str) -> type:
    """The schema of the choice `name`, which the class at `place` ("attacks.objectives.bits.Bits") takes.

    Its keys are the fields of the class, and of its bases in the same file, that are declared with `option`, whose
    arguments must be literals; its description is the first paragraph of the docstring.
    """
    module, _, kind = place.rpartition(".")
    classes = _classes(ROOT / f"{module.replace('.', '/')}.py")
    about = inspect.cleandoc(ast.get_docstring(classes[kind]) or "").partition("\n\n")[0]
    fields = [("name", str, name), *_declared_fields(kind, classes)]
    return make_dataclass(kind, fields, namespace={"__doc__": about, "__module__": __name__})


@cache
def _classes(path: Path) -> dict[str, ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _declared_fields(kind: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, Any, Any]]:
    for base in classes[kind].bases:
        if ast.unparse(base) in classes:
            yield from _declared_fields(ast.unparse(base), classes)
    for item in classes[kind].body:
        call = item.value if isinstance(item, ast.AnnAssign) else None
        if isinstance(item, ast.AnnAssign) and isinstance(call, ast.Call) and ast.unparse(call.func) == "option":
            arguments = [ast.literal_eval(argument) for argument in call.args]
            keywords = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            words = [(word, word.partition("[")[0]) for word in ast.unparse(item.annotation).split(" | ")]
            types = ["str" if kind == "Callable" else word for word, kind in words if kind in PLAIN]
            yield ast.unparse(item.target), " | ".join(types), option(*arguments, **keywords)
