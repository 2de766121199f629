"""The processes that share a run, as torchrun starts them.

Every process draws all views and keeps its part of them; what they find is summed, and all take the same step. So a
run does not depend on how many there are, but for the order of a sum.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: A process waits so long for the others. The first one measures the engine and writes files while they wait; one
#: that has died is noticed by torchrun at once, so this only ends what hangs.
PATIENCE = timedelta(minutes=30)


#: What the libraries say where the other end of a connection is gone, or silent.
GONE = ("connection", "timed out", "timeout", "broken pipe", "socket")


@contextmanager
def _others() -> Iterator[None]:
    """Raise ConnectionError, in one line, where another process has ended instead of answering. What it died of is
    said by itself, or by torchrun."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in GONE):
            raise
        raise ConnectionError(
            "another process of this run has ended, and none can go on without it; what is done is kept: start all "
            "of them again with resume=THE RUN'S DIRECTORY"
        ) from error


@dataclass(frozen=True)
class World:
    """One of `size` processes, number `rank`. The default is a process alone, with nothing to wait for."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """This process's part of `count` things: every `size`-th."""
        return range(self.rank, count, self.size)

    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes: the same bits in each of them."""
        if self.size > 1:
            for tensor in tensors:
                whole = tensor.contiguous()
                with _others():
                    dist.all_reduce(whole)
                    # Every process keeps the first one's sum: an algorithm may add in another order for each of them.
                    dist.broadcast(whole, 0)
                if whole is not tensor:
                    tensor.copy_(whole)

    def least(self, value: int) -> int:
        """The smallest of all."""
        if self.size == 1:
            return value
        smallest = torch.tensor(value)
        with _others():
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def meet(self) -> None:
        """Wait until all have come so far."""
        self.least(0)

    def agree(self, value: Any) -> Any:
        """The first process's value, of what JSON can hold: it is sent as text, so nothing that it holds is run."""
        if self.size == 1:
            return value
        text = list(json.dumps(value).encode()) if self.first else []
        length = torch.tensor(len(text))
        with _others():
            dist.broadcast(length, 0)
        letters = torch.tensor(text, dtype=torch.uint8) if self.first else torch.zeros(int(length), dtype=torch.uint8)
        with _others():
            dist.broadcast(letters, 0)
        return json.loads(bytes(letters.tolist()))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor; those of the others must have its shape and dtype."""
        if self.size > 1:
            tensor = tensor.contiguous()
            with _others():
                dist.broadcast(tensor, 0)
        return tensor


ALONE = World()


def join() -> World:
    """Join the processes that torchrun has started; `ALONE` if it has not. Joining again, for the next job of a
    sweep, gives the same world."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    if not dist.is_initialized():
        # Tensors on a GPU go by NCCL; counts, decisions and pictures are on the CPU.
        cuda = local_rank() < torch.cuda.device_count()
        if cuda:
            torch.cuda.set_device(local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return World(dist.get_rank(), dist.get_world_size())


def local_rank() -> int:
    """The number of this process on its machine, and of its GPU; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))
