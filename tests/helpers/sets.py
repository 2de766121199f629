"""Norm balls, and seeded values, for the tests of perturbation sets."""

import torch

from attacks import L0, L2, Linf
from attacks.perturbations import L1
from transforms.compose import seen

double = torch.float64
SIZE = (9, 12)
#: With these radii every ball partly leaves the box of a 9 x 12 picture.
BALLS = {"linf": (Linf, 8 / 255), "l2": (L2, 0.7), "l1": (L1, 3.0), "l0": (L0, 5)}


def ball(name, factor=1.0, **arguments):
    """The ball of that name; `factor` scales its radius."""
    kind, eps = BALLS[name]
    eps = max(1, round(factor * eps)) if kind is L0 else factor * eps
    return kind(**{"eps": eps, **arguments})


def seed(value=0):
    return torch.Generator().manual_seed(value)


def random(*shape, value=0, dtype=double):
    return torch.randn(shape, generator=seed(value), dtype=dtype)


def uniform(*shape, value=0):
    return torch.rand(shape, generator=seed(value), dtype=double)


def levels(*shape, value=0, dtype=double):
    """8-bit pictures in [0,1]."""
    return torch.randint(0, 256, shape, generator=seed(value)).to(dtype) / 255


def pictures(value=0, count=4, dtype=torch.float32):
    """8-bit pictures that touch both ends of the range: one black, one white, the others in between."""
    images = levels(count, 3, *SIZE, value=value, dtype=dtype)
    images[0], images[-1] = 0, 1
    return images


def random_like(images, value, scale):
    return scale * random(*images.shape, value=value, dtype=images.dtype)


def attack_pictures(perturbation, images, delta):
    """The attacked pictures, without any transform."""
    return seen(perturbation.scene(images, delta))


def assert_files(perturbation, images, delta):
    """Whether the attacked pictures are 8-bit files, and the difference between files is within eps."""
    values = (images + delta) * 255
    torch.testing.assert_close(values, values.round(), rtol=0, atol=1e-4)
    exact = (values.round().double() - (images * 255).round().double()) / 255
    assert (perturbation.norm(exact) <= perturbation.eps * (1 + 1e-12)).all()
    assert 0 <= values.min() <= values.max() <= 255
