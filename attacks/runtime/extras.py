"""Libraries that only the way through paper needs: they come with the extra `physical`."""

from __future__ import annotations

import importlib
from typing import Any


def extra(name: str) -> Any:
    """The module `name`, imported on first use. Raises ValueError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f'{name.partition(".")[0]} cannot be imported ({error}): pip install "viewproof[physical]"'
        ) from None
