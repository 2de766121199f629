"""The processes that share a run, as torchrun starts them: each evaluates its share of the views, and all take the
same step. Apart from the order of a sum, a run does not depend on their number."""

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

#: Timeout of a collective operation, which only ends a deadlock: torchrun notices a dead process at once.
PATIENCE = timedelta(minutes=30)
#: Words in the errors of a connection that is closed or silent.
CONNECTION_WORDS = ("connection", "timed out", "timeout", "broken pipe", "socket")


@contextmanager
def _waiting() -> Iterator[None]:
    """Raise ConnectionError, in one line, where another process has ended; it or torchrun reports the cause."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in CONNECTION_WORDS):
            raise
        problem = "another process of this run has ended; finished parts are saved"
        raise ConnectionError(f"{problem}: start all again with resume=THE RUN'S DIRECTORY") from error


@dataclass(frozen=True)
class World:
    """One of `size` processes, number `rank`. The default is a single process."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """The indices of this process's share of `count` items: every `size`-th."""
        return range(self.rank, count, self.size)

    def sum(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the processes: the same bits in each of them."""
        if self.size > 1:
            for tensor in tensors:
                total = tensor.contiguous()
                with _waiting():
                    dist.all_reduce(total)
                    # All keep the first one's sum: an algorithm may add in another order on each process.
                    dist.broadcast(total, 0)
                if total is not tensor:
                    tensor.copy_(total)

    def minimum(self, value: int) -> int:
        """The smallest value of all processes."""
        if self.size == 1:
            return value
        smallest = torch.tensor(value)
        with _waiting():
            dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest)

    def meet(self) -> None:
        """Wait until all processes reach this call."""
        self.minimum(0)

    def agree(self, value: Any) -> Any:
        """The first process's value, which JSON must be able to hold: sent as JSON, it cannot run code."""
        if self.size == 1:
            return value
        text = list(json.dumps(value).encode()) if self.first else []
        length = int(self.broadcast(torch.tensor(len(text))))
        data = self.broadcast(torch.tensor(text if self.first else [0] * length, dtype=torch.uint8))
        return json.loads(bytes(data.tolist()))

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The first process's tensor; those of the others must have its shape and dtype."""
        if self.size > 1:
            tensor = tensor.contiguous()
            with _waiting():
                dist.broadcast(tensor, 0)
        return tensor


ALONE = World()


def join() -> World:
    """Join the processes that torchrun has started; `ALONE` without torchrun. Later calls, for the next jobs of a
    sweep, return the same world."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    if not dist.is_initialized():
        cuda = local_rank() < torch.cuda.device_count()
        if cuda:
            torch.cuda.set_device(local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=PATIENCE)
        atexit.register(dist.destroy_process_group)
    return World(dist.get_rank(), dist.get_world_size())


def local_rank() -> int:
    """The number of this process on its machine, and of its GPU; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))
