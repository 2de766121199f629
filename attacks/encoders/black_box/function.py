"""A function of the user's own as a black box."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attacks.encoders.black_box.asked import AnswerError, BlackBox


def function(model: str, answer: str = "vector") -> BlackBox:
    """The function `module:function` of a module in the working directory, or of an installed one: 8-bit pictures
    (N,H,W,3) -> answers. Importing runs the module.

    Use: an encoder that Python can call, and whose gradient you do not have or may not use.
    Not: a module of torch: pass it to `attack`, and its gradient is followed.
    Source: this project's own.
    Cost: one call for each new picture; what was answered is kept.
    Oracle: eight bits, asked about once, tests/encoders/black_box/test_asked.py.
    With: encoder.model=victim:embed optimiser=nes

    Raises ValueError in one line: no such module or function, or an error in either.
    """
    module, _, name = model.partition(":")
    if not (all(part.isidentifier() for part in module.split(".")) and name.isidentifier()):
        raise ValueError(f"`model` must be module:function, in this folder or installed; got {model!r}")
    title = f"callable:{model}"
    sys.path.insert(0, str(Path.cwd()))
    try:
        victim: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's code
        raise ValueError(f"`model`: {model} cannot be imported ({_line(error)}); run from its folder") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(victim):
        raise ValueError(f"`model`: {model} must be a function of pictures (N,H,W,3); got a {type(victim).__name__}")

    def ask(pixels: np.ndarray) -> Any:
        try:
            return victim(pixels)
        except Exception as error:
            raise AnswerError(f"encoder {title} failed: {_line(error)}") from error

    return BlackBox(ask, title, answer=answer)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
