"""Plain PGD against torchattacks and ART: bit for bit where all three compute the same."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, L2, PGD, Linf, attack
from tests.helpers.solving import Untargeted

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]  # theirs, not ours
STEPS = 10


class Case:
    """A small classifier and pictures on a grid of `levels` steps. Eight of them: the libraries average the loss over
    the batch, and a power of two scales a gradient exactly."""

    def __init__(self, levels, seed):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 8, 3, 2), nn.Tanh(), nn.Conv2d(8, 8, 3, 2), nn.Tanh(), nn.Flatten()]
        self.net = nn.Sequential(*layers, nn.Linear(8 * 7 * 7, 10)).eval()
        self.images = torch.randint(0, levels + 1, (8, 3, 32, 32)).float() / levels
        self.labels = torch.randint(0, 10, (8,))
        self.levels = levels

    def ours(self, perturbation):
        parts = {"encoder": self.net, "objective": Untargeted(), "perturbation": perturbation, "eot": EOT(views=1)}
        optimiser = PGD(rel_step_size=0.25, momentum=0.0, schedule="constant")
        *_, end = attack(self.images, self.labels, optimiser=optimiser, steps=STEPS, **parts)
        return self.images + end.delta


def by_torchattacks(case):
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    pgd = module.PGD(case.net, 8 / case.levels, 2 / case.levels, STEPS, random_start=False)
    return pgd(case.images, case.labels)


def by_art(case):
    evasion = pytest.importorskip("art.attacks.evasion", exc_type=ImportError)
    classification = pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    classifier = classification.PyTorchClassifier(
        case.net, nn.CrossEntropyLoss(), case.images.shape[1:], 10, clip_values=(0, 1)
    )
    sizes = {"eps": 8 / case.levels, "eps_step": 2 / case.levels}
    pgd = evasion.ProjectedGradientDescent(
        classifier, norm=np.inf, max_iter=STEPS, num_random_init=0, verbose=False, **sizes
    )
    return torch.from_numpy(pgd.generate(case.images.numpy(), F.one_hot(case.labels, 10).float().numpy()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [255, 256])  # of a file, and one on which floats add exactly
@pytest.mark.parametrize("peer", [by_torchattacks, by_art])
def test_linf_pgd_equals_its_peers_bit_for_bit(peer, levels, seed):
    case = Case(levels, seed)
    theirs, ours = peer(case), case.ours(Linf(8 / levels, random_start=False))
    assert (theirs - case.images).abs().max() > 7.9 / levels  # it moved
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_l2_pgd_equals_torchattacks(seed):
    # Not exactly: torchattacks sums the gradient's length in another order. Away from the ends of the range, where
    # it clamps after the ball, and so is not at the nearest point of both.
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    case = Case(255, seed)
    case.images = case.images / 2 + 0.25
    theirs = module.PGDL2(case.net, 0.5, 0.125, STEPS, random_start=False, eps_for_division=0)
    result = theirs(case.images, case.labels)
    assert (result - case.images).flatten(1).norm(dim=1).min() > 0.4
    torch.testing.assert_close(case.ours(L2(0.5, random_start=False)), result, rtol=0, atol=1e-6)
