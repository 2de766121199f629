"""Warnings of each thread. `warnings.catch_warnings` changes what all threads see, so it is entered once for all."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

_LOCK, _LOCAL = threading.Lock(), threading.local()
_USERS: list[Any] = []  # the catcher, then an entry for each block at work


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of this thread while the block runs. Pillow's warning of a bomb is an error meanwhile."""
    texts: list[str] = []
    with _LOCK:
        if not _USERS:
            showwarning = warnings.showwarning
            catcher = warnings.catch_warnings()
            catcher.__enter__()
            warnings.simplefilter("always")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.showwarning = lambda message, *rest, **options: _take(message, showwarning, *rest, **options)
            _USERS.append(catcher)
        _USERS.append(texts)
    outer, _LOCAL.texts = getattr(_LOCAL, "texts", None), texts
    try:
        yield texts
    finally:
        _LOCAL.texts = outer
        with _LOCK:
            _USERS.pop()
            if len(_USERS) == 1:
                _USERS.pop().__exit__(None, None, None)


def _take(message: Warning | str, showwarning: Any, *rest: Any, **options: Any) -> None:
    texts = getattr(_LOCAL, "texts", None)
    if texts is None:
        showwarning(message, *rest, **options)
    else:
        texts.append(str(message))
