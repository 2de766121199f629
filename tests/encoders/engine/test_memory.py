"""Memory that is free, and memory that a pass holds."""

import torch
from torch import nn

from attacks.encoders.engine import free_memory
from attacks.encoders.engine.memory import most_rows, watch


def test_memory_is_the_least_of_machine_and_groups(tmp_path):
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


def test_a_chunk_may_use_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr("attacks.encoders.engine.memory.free_memory", lambda _: 1000)
    assert most_rows(torch.device("cpu"), 50.0) == 10
    assert most_rows(torch.device("cpu"), 5000.0) == 1


def test_held_bytes_count_each_storage_once_and_no_weights():
    layer, x = nn.Linear(10, 10), torch.rand(4, 10, requires_grad=True)
    with watch(torch.device("cpu")) as held:
        held.begin()
        y = layer(x).exp()  # keeps x for the weights, its result for exp
        _ = y * y  # and y twice more
        assert held.most == 2 * x.nbytes
        held.begin()
        _ = layer(x).exp().exp()
        assert held.most == 3 * x.nbytes
        held.begin()
        _ = layer(x)
    assert held.most == 3 * x.nbytes  # of the largest pass
