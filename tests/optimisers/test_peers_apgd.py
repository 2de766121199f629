"""APGD against torchattacks, from the same start and without randomness."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, L2, Linf, attack
from attacks.optimisers.apgd import APGD
from tests.helpers.solving import Untargeted

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
COUNT = 100
EPS = {"Linf": 8 / 255, "L2": 0.5}


@pytest.fixture(autouse=True)
def wide():
    """They keep their losses in the default type and compare them there. In float32 the last digit decides which
    picture gained, once a loss stops changing, and the paths diverge."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def case(seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, 2), nn.Tanh(), nn.Conv2d(8, 8, 3, 2), nn.Tanh(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(8 * 3 * 3, 10)).eval().requires_grad_(False)
    for weight in net.parameters():
        weight *= 3  # well into the bend of the tanh
    return net, torch.rand(COUNT, 3, 16, 16), torch.randint(0, 10, (COUNT,))


def theirs(net, images, labels, norm, steps):
    """The best point of each picture, and its loss. No steps at all: the start."""
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    run = module.APGD(net, norm=norm, eps=EPS[norm], steps=steps, n_restarts=1)
    torch.manual_seed(11)
    best, _, loss, _ = run.attack_single_run(images, labels)
    return best.detach(), loss


def ours(net, images, labels, norm, steps, start):
    """The final picture. They try n + 1 points in n steps, we try n in n."""
    kind = {"Linf": Linf, "L2": L2}[norm]

    class FromStart(kind):
        def start(self, images, generator):
            return start - images

    parts = {"encoder": net, "objective": Untargeted(), "perturbation": FromStart(EPS[norm]), "eot": EOT(views=1)}
    *_, end = attack(images, labels, optimiser=APGD(), steps=steps + 1, **parts)
    return images + end.delta


@pytest.mark.parametrize("steps", [10, 59, 100])
@pytest.mark.parametrize("norm", EPS)
def test_apgd_equals_torchattacks(norm, steps):
    net, images, labels = case(0)
    if norm == "L2":  # away from the ends, where they clamp after the ball: that is not the nearest point
        images = images / 2 + 0.25
    start, began = theirs(net, images, labels, norm, 0)
    expected, losses = theirs(net, images, labels, norm, steps)
    result = ours(net, images, labels, norm, steps, start)
    loss = F.cross_entropy(net(result), labels, reduction="none")
    assert (losses > began + 0.3).all()  # it moved
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(loss, losses, rtol=0, atol=1e-6)
    assert (loss >= losses - 1e-9).all()
