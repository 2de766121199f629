"""A fingerprint of weights: one for equal tensors, wherever they come from, and another for anything else."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks.encoders.weights import fingerprint, load_weights


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)).eval()


class Holds(nn.Module):
    """A module whose state is what it is given."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def test_equal_tensors_have_one_fingerprint_wherever_they_come_from(tmp_path):
    found = {fingerprint(network(1))}
    for name, save in (("w.safetensors", save_file), ("w.pt", torch.save)):
        save(network(1).state_dict(), tmp_path / name)
        load_weights(module := network(), tmp_path / name)
        found.add(fingerprint(module))
    counted = network(1)
    counted[1].num_batches_tracked += 100  # steers training only, and some files have it not
    found.add(fingerprint(counted))
    base = torch.arange(12.0).reshape(3, 4)
    assert fingerprint(Holds(a=base.T)) == fingerprint(Holds(a=base.T.contiguous()))
    assert fingerprint(Holds(a=base[:, 1])) == fingerprint(Holds(a=base[:, 1].clone()))
    assert fingerprint(Holds(a=base[:1].expand(3, 4))) == fingerprint(Holds(a=base[:1].repeat(3, 1)))
    assert fingerprint(Holds(a=base, b=base)) == fingerprint(Holds(b=base.clone(), a=base.clone()))
    assert len(found) == 1


def test_one_bit_the_dtype_the_shape_or_a_name_changes_the_fingerprint():
    base = torch.arange(12.0).reshape(3, 4)
    flipped = base.clone()
    flipped.view(torch.int32)[2, 3] ^= 1
    negative = base.clone()
    negative[0, 0] = -0.0
    others = [Holds(a=t) for t in (base, flipped, negative, base.double(), base.view(4, 3), base.view(torch.int32))]
    others += [Holds(b=base), Holds(a=base, b=base), Holds(a=base.T.contiguous()), Holds(), Holds(a=base[:0])]
    assert len({fingerprint(module) for module in others}) == len(others)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.tensor(True),
        torch.zeros(0),
        torch.zeros(2, 0, 3),
        torch.randn(3).bfloat16(),
        torch.randn(3).half(),
        torch.randn(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.uint8),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.randn(3, requires_grad=True) * 2,
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_tensors_of_every_kind_have_a_fingerprint(tensor):
    assert fingerprint(Holds(a=tensor)) == fingerprint(Holds(a=tensor.detach().clone()))
    assert fingerprint(Holds(a=tensor)) != fingerprint(Holds(a=tensor.detach().clone()[None]))
