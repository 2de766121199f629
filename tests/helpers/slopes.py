"""The gradient of a function against differences of its values."""

import torch


def assert_slope(function, leaf):
    """The gradient of a function of a float64 tensor equals central differences along random directions to a
    thousandth of itself, so that one dead pixel shows. (`gradcheck` in its fast mode has an absolute tolerance, which
    a dead row of pixels passes.)"""
    generator, leaf = torch.Generator().manual_seed(0), leaf.detach().clone().requires_grad_()
    output = function(leaf)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((output * weights).sum(), leaf)
    assert gradient.any()
    for _ in range(3):
        step = 1e-6 * torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            difference = ((function(leaf + step) - function(leaf - step)) * weights).sum() / 2
        assert float((difference - (gradient * step).sum()).abs()) <= 1e-3 * 1e-6 * float(gradient.norm())
