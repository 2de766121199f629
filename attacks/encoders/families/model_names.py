"""What timm and open_clip share: a model has a name of the library's, or is a folder that the library has written."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request

#: Before the folder of a model.
FOLDER = "local-dir:"


def check_name(name: str, names: Sequence[str], library: str, model: str) -> None:
    """Raise ValueError for a name that is not one of `names`, with the nearest; `model` is what was asked for."""
    if name not in names:
        near = difflib.get_close_matches(name, names, 3, 0.5)
        raise ValueError(
            f"`encoder.model` must be one of {library}'s {len(names)}, or {FOLDER}FOLDER; got {model!r}"
            + (f" (near it: {', '.join(near)})" if near else "")
        )


def saved_folder(request: Request, config: str, files: Sequence[str]) -> tuple[Path, Request]:
    """The file `config` of the folder of a request, and the request with the file of its weights, one of `files`.

    Raises ValueError, FileNotFoundError: no such folder or weights.
    """
    folder = Path(request.model.removeprefix(FOLDER))
    if not (folder / config).is_file():
        raise FileNotFoundError(
            f"`encoder.model`: there is no `{folder / config}` (paths are relative to {Path.cwd()})"
        )
    if request.weights == PRETRAINED:
        file = next((folder / name for name in files if (folder / name).is_file()), None)
        if file is None:
            raise FileNotFoundError(f"`{folder}` has no {' or '.join(files)}; name a file with encoder.weights=FILE")
        request = replace(request, weights=str(file))
    elif request.weights != RANDOM and request.file is None:
        raise ValueError(f"`encoder.weights` of a folder are pretrained, random or a file; got {request.weights!r}")
    return folder / config, request


def set_size(network: Any, size: tuple[int, ...], preprocess: Preprocess, model: str) -> None:
    """Change a network of a fixed `size` to that of the preprocessing. Raises ValueError where it has no such
    method."""
    frame = preprocess.frame
    if frame == size:
        return
    if frame is None or not hasattr(network, "set_input_size"):
        raise ValueError(
            f"`encoder.preprocess`: {model} takes {size[0]}x{size[1]} pixels and no others; leave `crop` and `size` "
            "as they are"
        )
    network.set_input_size(frame)
