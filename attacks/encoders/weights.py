"""Reading weights without running anybody's code: safetensors only."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Fill `module` from a safetensors file; half precision is widened to the module's dtype.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a safetensors file, or its names or shapes are not the module's, with the first ones.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"weights `{path}` do not exist (paths are relative to {Path.cwd()})")
    try:
        read: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"weights `{path}` are not a safetensors file ({error}); pickles are never read") from None
    # Batch norm's counters steer training only; files are with them or without.
    wanted, found = (
        {name: t for name, t in state.items() if not name.endswith("num_batches_tracked")}
        for state in (module.state_dict(), read)
    )
    missing, surplus = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or surplus:
        raise ValueError(
            f"weights `{path}` do not fit {type(module).__name__}: {len(missing)} keys missing (first: "
            f"{missing[:1]}), {len(surplus)} unknown (first: {surplus[:1]}); are they of another encoder?"
        )
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"weights `{path}` do not fit {type(module).__name__}: `{name}` must have shape "
                f"{tuple(tensor.shape)}, got {tuple(found[name].shape)}"
            )
        tensor.copy_(found[name])
