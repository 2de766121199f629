"""Free memory, memory saved by a pass, and memory kept by the allocator."""

import torch
from torch import nn

from attacks.encoders.engine.memory import free_memory, watch


def test_free_memory_is_the_least_of_machine_and_cgroups(tmp_path):
    cpu = torch.device("cpu")
    assert free_memory(cpu, tmp_path) is None
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "1000\n",
        "sys/fs/cgroup/outer/inner/memory.stat": "inactive_file 0\n",
        "sys/fs/cgroup/outer/memory.max": "5000000\n",
        "sys/fs/cgroup/outer/memory.current": "3000000\n",
        "sys/fs/cgroup/outer/memory.stat": "anon 1\ninactive_file 400000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(cpu, tmp_path) == 2_400_000
    (tmp_path / "proc/self/cgroup").write_text("3:cpu:/x\n")
    assert free_memory(cpu, tmp_path) == 8000 * 1024
    assert free_memory(torch.device("meta")) is None


def test_saved_bytes_count_each_storage_once_and_no_weights():
    layer, x = nn.Linear(10, 10), torch.rand(4, 10, requires_grad=True)
    with watch(torch.device("cpu")) as memory:
        memory.begin()
        y = layer(x).exp()  # saves x for the weights and the result of exp
        _ = y * y  # saves y twice
        assert memory.largest == 2 * x.nbytes
        memory.begin()
        _ = layer(x).exp().exp()
        assert memory.largest == 3 * x.nbytes
        memory.begin()
        _ = layer(x)
    assert memory.largest == 3 * x.nbytes  # of the largest pass
