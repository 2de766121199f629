"""The API reference of the site, a page for each room with all of its public names: `docs/conf.py` writes them."""

import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).resolve().parents[1]
#: Public classes of modules that are no rooms.
OF_MODULES = {"transforms.compose": "Geometry Homography", "transforms.scene": "Layer Scene"}
#: The head of the page `index`.
INDEX = """# API reference

Every public name, a line each, by room. Its own page has shapes, units, ranges, errors, sources and an example, which
starts with `import torch`.

"""


def public_names() -> dict[str, str]:
    """Each public name, as it is imported (`attacks.PGD`), with its room (`attacks.optimisers`): what a stub
    `__init__.pyi` of `attacks`, `transforms` or one of their rooms imports, once where two do, and `OF_MODULES`."""
    return {name: ".".join(home.split(".")[:2]) for name, home in _homes().items()}


def docstring(name: str) -> str:
    """What documents a public name: its docstring; of a value, which has none, the string below its assignment."""
    package, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(package), attribute)
    if callable(value):
        return inspect.getdoc(value) or ""
    body = ast.parse(inspect.getsource(importlib.import_module(_homes()[name]))).body
    below = next(text for value, text in pairwise(body) if ast.unparse(value).startswith(f"{attribute} = "))
    return inspect.cleandoc(ast.literal_eval(below.value)) if isinstance(below, ast.Expr) else ""


def _homes() -> dict[str, str]:
    """Each public name with the module that the stub imports it from."""
    names: dict[str, str] = {}
    homes = set()
    stubs = [stub for package in ("attacks", "transforms") for stub in (ROOT / package).rglob("__init__.pyi")]
    for stub in sorted(stubs, key=lambda stub: len(stub.parts)):
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ImportFrom):
                continue
            home = f"{package}.{node.module}"
            for alias in node.names:
                if (home, alias.name) not in homes:
                    homes.add((home, alias.name))
                    names[f"{package}.{alias.asname or alias.name}"] = home
    return names | {f"{module}.{name}": module for module, classes in OF_MODULES.items() for name in classes.split()}


def pages() -> dict[str, str]:
    """The text of each page in MyST, by name: the rooms and `index`."""
    rooms: dict[str, list[str]] = {}
    for name, room in public_names().items():
        rooms.setdefault(room, []).append(name)
    order = sorted(rooms)
    lines_of_page = {room: _page(room, sorted(rooms[room], key=str.lower)) for room in order}
    tree = "\n".join(order)
    lists = "\n".join(f"\n## [{room}]({room}.md)\n\n" + "".join(map(_entry, rooms[room])) for room in order)
    lines_of_page["index"] = f"{INDEX}```{{toctree}}\n:hidden:\n\n{tree}\n```\n{lists}"
    return lines_of_page


def _entry(name: str) -> str:
    """A public name, and the first sentence of what documents it."""
    text = " ".join(docstring(name).partition("\n\n")[0].split())
    sentence = re.split(r"(?<!al\.)(?<=\.) (?=[A-Z`])", text)[0]
    line = sentence if len(sentence) < 100 else re.split(r"[:;] ", sentence)[0].rstrip(".") + "."
    return f"- [`{name.rpartition('.')[2]}`](#{name}): {line}\n"


def _page(room: str, names: list[str]) -> str:
    intro, blocks = inspect.getdoc(importlib.import_module(room)) or "", "\n".join(map(_directive, names))
    return f"# {room}\n\n{intro}\n\n```{{eval-rst}}\n{blocks}```\n"


def _directive(name: str) -> str:
    package, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(package), attribute)
    if inspect.isclass(value):
        return f".. autoclass:: {name}\n   :members:\n"
    if callable(value):
        return f".. autofunction:: {name}\n"
    return f".. py:data:: {name}\n\n{indent(docstring(name), '   ')}\n"  # autodata has the docstring of its class
