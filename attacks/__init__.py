"""Attacks on image encoders under expectation over transformation.

The public names stand in `__init__.pyi`. Each is imported when it is first used; no module may share its name.
"""

import importlib.util
import sys
from pathlib import Path

__version__ = "0.1.0"


def _refuse_other_transforms() -> None:
    """Raise ImportError where `import transforms` would find a file or a folder of the user's by that common name."""
    root = Path(__file__).resolve().parents[1]
    spec = importlib.util.find_spec("transforms")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin != root / "transforms" / "__init__.py":
        message = (
            f"viewproof needs its own `transforms` in {root}; Python finds {origin}: rename that, or start elsewhere"
        )
        if sys.argv[:1] == ["-m"]:  # python -m attacks.run
            sys.exit(f"error: {message}")
        raise ImportError(message)


_refuse_other_transforms()

import lazy_loader  # noqa: E402

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
