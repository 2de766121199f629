"""The family of inks: its colours are those of the halftone model, and its gradients those of finite differences."""

import pytest
import torch

from attacks.perturbations.patch.inks import INKS, Inks, neugebauer
from transforms.colour.spaces import to_srgb

double = torch.float64


def at(**values):
    """One ink: a range of no width for each value."""
    return Inks(**{name: (value, value) for name, value in values.items()})


def test_a_member_of_the_family_is_the_halftone_of_its_overprints():
    inks = Inks(gamma=(1, 1))
    colours, u = torch.rand(2, 3, 5, 7, dtype=double) * 0.9 + 0.1, torch.rand(2, 6, dtype=double)
    outputs, overprints = inks(colours, u), to_srgb(inks.overprints(u))
    for single, original, output in zip(colours, overprints, outputs, strict=True):
        expected = neugebauer(single.flatten(1).T, original).T.reshape(3, 5, 7).clamp(0, 1)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


def test_the_inks_that_set_the_ranges_lie_in_the_family():
    u = torch.zeros(1, 6, dtype=double)
    corners = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 1]], dtype=double).T[None, :, None]
    reference = {
        (1.0, 0.014, 0.0): (INKS[0], INKS[4], INKS[7]),  # SWOP
        (0.9, 0.045, -0.2): ((60, 60, 60), (200, 64, 61), None),  # plain paper
    }
    for (gamut, black, gain), target in reference.items():
        output = at(gamma=1.0, gamut=gamut, black=black, gain=gain)(corners, u)[0, :, 0].T * 255
        for colour, want in zip(output, target, strict=True):
            assert want is None or (colour - colour.new_tensor(want)).abs().max() < 20
    low, high = Inks().bounds[1:3], Inks().bounds[3]
    assert low[0][0] <= 0.9 and low[1][0] <= 0.014 and low[1][1] >= 0.045 and high[0] <= -0.2 <= 0 <= high[1]


def test_gradients_are_those_of_finite_differences():
    colours = (torch.rand(2, 3, 2, 3, dtype=double) * 0.9 + 0.05).requires_grad_()
    u = torch.rand(2, 6, dtype=double).requires_grad_()
    assert torch.autograd.gradcheck(Inks(), (colours, u))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_gradient_lives_at_the_ends_of_the_range(value):
    colours = torch.full((64, 3, 1, 1), value, requires_grad=True)
    Inks()(colours, torch.rand(64, 6)).sum().backward()
    assert colours.grad.isfinite().all() and colours.grad.min() > 1e-3 and colours.grad.max() < 100


def test_each_view_has_its_own_ink_and_the_same_again():
    colours, u = torch.rand(1, 3, 4, 4).expand(3, -1, -1, -1), torch.rand(3, 6)
    output = Inks()(colours, u)
    assert torch.equal(output, Inks()(colours, u))
    assert all(not torch.equal(output[0], other) for other in output[1:])
