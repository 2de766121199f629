"""A model of a library by name, or in a folder that the library has written, local or from Hugging Face's hub. Only
configurations, vocabularies of tokenizers and safetensors are read; pickles and Python files are not even fetched."""

import difflib
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import PRETRAINED, RANDOM, Request, fetching
from attacks.encoders.weights import TORCH_FILES, is_of, read_state
from attacks.runtime.extras import extra

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
#: What helps where nothing can be fetched.
_LOCAL = "a local folder that holds the model (encoder.model=FOLDER)"


def model_folder(request: Request, files: Sequence[str], weights: Sequence[str]) -> Path:
    """The folder that `request.model` names: itself, or the hub's in the local cache, or fetched: the patterns
    `files`, and where they are asked for `weights`. Raises FileNotFoundError for neither a folder nor a name,
    ValueError for a name that is neither in the cache nor on the hub, or weights that are a tag."""
    if request.file is None and request.weights not in (PRETRAINED, RANDOM):
        raise ValueError(f"`encoder.weights` must be pretrained, random or a file; got {request.weights!r}")
    folder = Path(request.model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not _NAME.fullmatch(request.model):
        fault = "is a file; name its folder" if folder.exists() else "is no folder here, and no name on the hub"
        raise FileNotFoundError(f"`encoder.model` {request.model} {fault} (paths are relative to {Path.cwd()})")
    patterns = [*files, *(() if request.needs_no_download else weights)]
    hub = extra("huggingface_hub")
    with suppress(OSError, ValueError):  # missing or incomplete
        cache = Path(hub.snapshot_download(request.model, allow_patterns=patterns, local_files_only=True))
        if request.needs_no_download or any(path for pattern in weights for path in cache.glob(pattern)):
            return cache
    with fetching(f"{request.model} of the hub", _LOCAL):
        return Path(hub.snapshot_download(request.model, allow_patterns=patterns))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises FileNotFoundError or ValueError."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"`encoder.model` {folder} has no config.json: is it the folder of a model?")
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`encoder.model` {folder}: config.json cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"`encoder.model` {folder}: config.json must hold a mapping; got a {type(config).__name__}")
    return config


def read_weights(
    request: Request, folder: Path, stem: str, parts: Collection[str] = ()
) -> tuple[dict[str, Tensor], Path | None, str]:
    """The tensors, their file if there is one, and their name for errors: of the request's file; of the folder's
    `stem`.safetensors; or of the files that its index lists, fetched from the hub where they are not there. `parts`
    as of `read_state`. Raises ValueError or FileNotFoundError where there are none, or only pickles."""
    if request.file is not None:
        return read_state(request.file, parts), request.file, f"weights `{request.file}`"
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return read_state(single, parts), single, f"the weights of {folder}"
    if index.is_file():
        files = _files_of_index(index, parts)
        absent = [file for file in files if not (folder / file).is_file()]
        if absent and not Path(request.model).expanduser().is_dir():
            with fetching(f"{request.model} of the hub", _LOCAL):  # of the folder's own commit
                extra("huggingface_hub").snapshot_download(request.model, revision=folder.name, allow_patterns=absent)
        states = [read_state(folder / file, parts) for file in files]
        return {name: tensor for state in states for name, tensor in state.items()}, None, f"the weights of {folder}"
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in TORCH_FILES)
    if pickles:
        raise ValueError(
            f"`encoder.model` {folder} has no {single.name}, only {pickles[0]}: a pickle can run code when it is "
            "read, so it is refused. Where you trust it, save it with safetensors (save_pretrained)"
        )
    raise FileNotFoundError(
        f"`encoder.model` {folder} has no {single.name} (a pickle is never fetched): give the weights as "
        "encoder.weights=FILE, or encoder.weights=random to see whether all runs"
    )


def _files_of_index(index: Path, parts: Collection[str]) -> list[str]:
    """The files of an index, each beside it, that hold tensors of the parts. Raises ValueError."""
    try:
        places = dict(json.loads(index.read_text())["weight_map"])
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        files = []
    if not files or any(
        not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors") for file in files
    ):
        raise ValueError(
            f"`encoder.model` {index.parent}: {index.name} must list safetensors beside it; got {files[:3]}"
        )
    return sorted({file for name, file in places.items() if is_of(name, parts)})


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

    Raises FileNotFoundError for no such folder or weights, ValueError for weights that are neither random nor a file.
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
