"""Attacks on image encoders under expectation over transformation.

The public names stand in `__init__.pyi`. Each is imported when it is first used, so that the command line answers
before torch is loaded. No module may share its name with one of them: importing it would hide the function.
"""

import importlib.util
from pathlib import Path

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _check_neighbours() -> None:
    """`transforms` and `configs` are common names: a folder of that name elsewhere on the path would shadow ours."""
    root = Path(__file__).resolve().parents[1]
    for name in ("transforms", "configs"):
        found = importlib.util.find_spec(name)
        origin = Path(found.origin).resolve() if found and found.origin else None
        if origin is None or origin.parents[1] != root:
            raise ImportError(
                f"`{name}` was found at {origin}, not beside `attacks` in {root}: another folder shadows it"
            )


_check_neighbours()
