"""The schema of a part that declares its keys in its own class. It is read from the source, without torch."""

import ast
import inspect
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from attacks.schema.options import option

ROOT = Path(__file__).resolve().parents[2]
#: The files of presets and choices.
CONFIGS = ROOT / "configs"


def class_schema(name: str, place: str) -> type:
    """The schema of the choice `name`, which the class at `place` ("attacks.objectives.bits.Bits") takes.

    Its keys are the fields of the class that are declared with `option`, whose arguments must be literals; its
    description is the first paragraph of the docstring.
    """
    module, _, kind = place.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (node,) = (item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == kind)
    fields: list[tuple[str, Any, Any]] = [("name", str, name)]
    for item in node.body:
        call = item.value if isinstance(item, ast.AnnAssign) else None
        if isinstance(item, ast.AnnAssign) and isinstance(call, ast.Call) and ast.unparse(call.func) == "option":
            arguments = [ast.literal_eval(item) for item in call.args]
            keywords = {str(item.arg): ast.literal_eval(item.value) for item in call.keywords}
            fields.append((ast.unparse(item.target), ast.unparse(item.annotation), option(*arguments, **keywords)))
    about = inspect.cleandoc(ast.get_docstring(node) or "").partition("\n\n")[0]
    return make_dataclass(kind, fields, namespace={"__doc__": about, "__module__": __name__})
