"""From the host to the device, without waiting: whatever decides by coordinates of views does so on the host."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

HOST = torch.device("cpu")


def uploaded(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`; differentiable. On CUDA the host does not wait for the copy."""
    return tensor.to(device, non_blocking=device.type not in ("cpu", "mps"))


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers (n,) on a device, copied there once; not to be overwritten."""
    return uploaded(torch.tensor(values, dtype=dtype), device)


def picked(tensor: Tensor, rows: Sequence[int] | Tensor) -> Tensor:
    """Some rows of a tensor on any device, by their numbers on the host."""
    return tensor.index_select(0, uploaded(torch.as_tensor(rows), tensor.device))


def wide_dtype(like: Tensor) -> torch.dtype:
    """Matrices are multiplied in float64 where there is one: a GPU may run float32 products in TF32, pixels off."""
    return torch.float32 if like.device.type == "mps" else torch.float64
