"""Several processes that sum their tensors, simulated by threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from attacks.runtime.distributed import World


class Fellow(World):
    """One of several processes."""

    def __init__(self, rank, size, table, barrier):
        super().__init__(rank, size)
        object.__setattr__(self, "common", (table, barrier))

    def sum(self, *tensors):
        table, barrier = self.common
        for tensor in tensors:
            table[self.rank] = tensor.clone()
            barrier.wait()
            total = sum(table[i] for i in range(self.size))
            barrier.wait()
            tensor.copy_(total)


def together(size, work):
    """The results of `work(world)` on each of `size` processes."""
    table, barrier = {}, threading.Barrier(size, timeout=60)

    def run_rank(rank):
        try:
            return work(Fellow(rank, size, table, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run_rank, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception())]
    if errors:  # the other threads raise a broken barrier
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [future.result() for future in futures]
