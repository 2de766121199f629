"""Several processes that share their sums, here the threads of one."""

import threading

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
    table, result, failed, barrier = {}, {}, [], threading.Barrier(size, timeout=60)

    def one(rank):
        try:
            result[rank] = work(Fellow(rank, size, table, barrier))
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [result[rank] for rank in range(size)]
