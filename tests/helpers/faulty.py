"""Injected faults: stages, encoders and attacks with non-finite values or without a gradient."""

from dataclasses import dataclass

import torch
from torch import nn

from attacks import EOT, PGD, Away, Linf, attack
from attacks.objectives import Members
from tests.helpers.small import small
from transforms import Compose

LIMIT = 8.0


@dataclass(frozen=True)
class Turn:
    """Brightness by an angle in (-10, 10); NaN, or an infinite slope, above a limit."""

    slope: bool = False
    limit: float = LIMIT
    label = "turn"
    dims = 1
    names = ("angle (deg)",)

    def values(self, u):
        return 20 * u - 10

    def __call__(self, images, u):
        angle = self.values(u)[:, :, None, None]
        bad = angle > self.limit
        if self.slope:
            flat = torch.where(bad, images - images, 1.0).abs().sqrt()  # infinite slope at 0
            return images + torch.where(bad, flat, 0.0)
        return torch.where(bad, torch.nan, images * (1 + angle / 100))


def net(seed=0):
    return small(seed, width=4, kernel=3, features=6, size=(10, 12))


def pictures(count=3):
    return 0.2 + 0.6 * torch.rand(count, 3, 10, 12, generator=torch.Generator().manual_seed(1))


def attack_steps(encoder=None, stages=(), objective=None, perturbation=None, images=None, n=8, **options):
    images, encoder = pictures() if images is None else images, encoder or net()
    anchor = torch.stack([net()(image[None])[0] for image in images])
    if isinstance(objective, Members):
        anchor = (anchor, anchor)
    settings = {"perturbation": perturbation or Linf(0.1), "optimiser": PGD(), "steps": 6, "seed": 3} | options
    eot = EOT(Compose(list(stages)), views=n, chunk=5)
    return attack(images, anchor, encoder=encoder, objective=objective or Away(), eot=eot, **settings)


def run_attack(**setup):
    for _ in attack_steps(**setup):
        pass


class Head(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.net, self.function, self.training = net(), function, False

    def forward(self, images):
        return self.function(self.net(images), images)
