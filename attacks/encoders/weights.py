"""Reading weights without running code: safetensors, or a `.pt` of plain tensors; never a full pickle."""

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

#: Suffixes of torch's own files, which are pickles; they are only read with `weights_only=True`.
TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
#: Prefixes that parallel training and compilation put before every name.
_WRAPPERS = ("module.", "_orig_mod.")


def read_state(path: str | Path, parts: Collection[str] = ()) -> dict[str, Tensor]:
    """The named tensors of a safetensors file, or of a file of torch's that holds nothing else.

    A file of torch's may hold the state under the one key "state_dict", "model" or "model_state_dict", as training
    scripts write it.

    Args:
        parts: where given, only tensors with one of these between the dots of their names are kept; of a safetensors
            file no others are read.

    Raises:
        FileNotFoundError: no such file, or a folder.
        ValueError: not such a file, or one that cannot be read without running code.
    """
    path = Path(path)
    if not path.is_file():
        fault = "are a folder; name a file in it" if path.is_dir() else "do not exist"
        raise FileNotFoundError(f"weights `{path}` {fault} (paths are relative to {Path.cwd()})")
    if path.stat().st_size == 0:
        raise ValueError(f"weights `{path}` are an empty file: was the download cut off?")
    if path.suffix.lower() in TORCH_FILES:
        return {name: tensor for name, tensor in _torch_file(path).items() if is_of(name, parts)}
    return _safetensors(path, parts)


def is_of(name: str, parts: Collection[str]) -> bool:
    """Whether one of the parts stands between the dots of a tensor's name, or there are none."""
    return not parts or not frozenset(parts).isdisjoint(name.split("."))


def _safetensors(path: Path, parts: Collection[str]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            names: list[str] = file.keys()
            return {name: file.get_tensor(name) for name in names if is_of(name, parts)}
    except SafetensorError as error:
        raise ValueError(
            f"weights `{path}` are not a safetensors file, or not a whole one ({' '.join(str(error).split())}); a "
            f"file of torch's ends in {', '.join(TORCH_FILES)}"
        ) from None
    except Exception as error:  # a broken header may fail in any way
        raise _unreadable(path, error) from None


def _torch_file(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():  # it warns of TorchScript before it refuses it
            warnings.simplefilter("ignore")
            files = zipfile.ZipFile(path).infolist() if zipfile.is_zipfile(path) else []
            if sum(file.file_size for file in files) > 2 * path.stat().st_size + 2**20:
                raise ValueError("it is compressed, which torch's are not, and becomes far larger")
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("GLOBAL ")[2].split()
        callee = f" (it asks for {reason[0]})" if reason else ""
        raise ValueError(
            f"weights `{path}` hold more than tensors, or are no file of torch's{callee}: reading them could run "
            "code, so they are refused. Save the state_dict with safetensors where you trust the file"
        ) from None
    except Exception as error:  # a broken file may fail in any way
        if "TorchScript" in str(error):
            raise ValueError(
                f"weights `{path}` are a TorchScript program, for encoder=torchscript alone; save its state_dict"
            ) from None
        raise _unreadable(path, error) from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(_plain(v) for v in content.values()):
        raise ValueError(f"weights `{path}` are not a state_dict, names with a dense tensor each; save one of those")
    return {str(name): tensor for name, tensor in content.items()}


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = next(iter(str(error).splitlines()), "")
    return ValueError(f"weights `{path}` cannot be read ({type(error).__name__}: {reason[:200]}); is the file whole?")


def fill(module: nn.Module, state: dict[str, Tensor], label: str, *, ignore: Collection[str] = ()) -> None:
    """Fill `module` from the tensors of a file (see `read_state`), which `label` names in errors, and cast it to half
    precision where all of them are in it; several precisions are widened to the module's dtype. `ignore` has names,
    or prefixes that end in a dot, that the file may have and the module has not, such as the classifier's head.

    Raises ValueError: names, shapes or kinds of numbers that are not the module's, with the first ones; or a value
        that is not a number.
    """
    # Batch norm's counters matter for training only, and not all files have them.
    expected, tensors = (
        {name: t for name, t in names_and_tensors.items() if not name.endswith("num_batches_tracked")}
        for names_and_tensors in (module.state_dict(), unwrapped_state(state))
    )
    tensors = {name: t for name, t in tensors.items() if name in expected or not name.startswith(tuple(ignore))}
    unfit = f"{label} do not fit {type(module).__name__}: "
    missing, surplus = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or surplus:
        raise ValueError(
            f"{unfit}{len(missing)} keys missing (first: {missing[:1]}), {len(surplus)} unknown (first: "
            f"{surplus[:1]}); are they of another encoder?"
        )
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}, got {tuple(tensors[name].shape)}"
            raise ValueError(f"{unfit}`{name}` must have shape {shapes}")
        if _kind(tensors[name]) != _kind(tensor):  # integers in place of floats are levels of a quantised network
            raise ValueError(f"{unfit}`{name}` must hold numbers such as {tensor.dtype}, got {tensors[name].dtype}")
    parameters = {name for name, _ in module.named_parameters()}  # a buffer may be a mask of minus infinity
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(tensors[name])
            if bool(tensor.isnan().any()) or (name in parameters and not bool(tensor.isfinite().all())):
                kind = "NaN" if bool(tensor.isnan().any()) else "infinity"
                raise ValueError(f"{label}: `{name}` holds {kind}, so no number of the encoder would mean anything")
    module.to(half_dtype(tensors))


def half_dtype(state: dict[str, Tensor]) -> torch.dtype | None:
    """The half precision of all floating-point tensors of a state; None where they have another, or several."""
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= {torch.float16, torch.bfloat16} else None


def _kind(tensor: Tensor) -> str:
    return "complex" if tensor.is_complex() else "real" if tensor.is_floating_point() else "whole"


def unwrapped_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their names without the prefixes of parallel training and compilation."""
    for wrapper in _WRAPPERS:
        if state and all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): tensor for name, tensor in state.items()}
    return state


def fingerprint(module: nn.Module) -> str:
    """The sha256 of a module's state: its names, dtypes, shapes and bytes, in the order of names. The same weights
    have the same one, whatever their source; batch norm's counters, which matter for training only, are left out."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if not isinstance(tensor, Tensor) or name.endswith("num_batches_tracked"):
            continue
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()
