"""Scenes: every layer is sampled once, straight into the view, and composited there."""

import pytest
import torch

from tests.transforms.test_compose import frame
from transforms import Affine, Compose, Perspective
from transforms.sampling.homography import invert
from transforms.scene import Layer, Scene

STAGES = (Affine(degrees=(25, 25), scale=(0.5, 1.2), translate=0.1), Perspective(0.2))
EYE = torch.eye(3, dtype=torch.float64)[None]
SIZE = (80, 120)
TOP, LEFT = 30, 40  # where the patch lies in the scene


@pytest.fixture
def patch(photo):
    """25 x 50 pixels of the photograph."""
    return photo[..., 5:30, 60:110].flip(-1).contiguous()


@pytest.fixture
def u():
    return torch.rand(1, 13, dtype=torch.float64)


def with_patch(base, patch, alpha=None):
    """A scene with the patch on whole pixels of the base."""
    size = (patch.shape[2], patch.shape[3])
    move = EYE.clone()
    move[0, :2, 2] = torch.tensor([-LEFT, -TOP])
    pull = invert(frame(size, base)) @ move @ frame(SIZE, base)
    return Scene((Layer(base, None, EYE), Layer(patch, alpha, pull)), SIZE)


def paste(base, patch, alpha):
    """The same pasted into one picture."""
    picture = base.clone()
    part = picture[..., TOP : TOP + patch.shape[2], LEFT : LEFT + patch.shape[3]]
    part.copy_(alpha * patch + (1 - alpha) * part)
    return picture


@pytest.mark.parametrize("antialias", [False, True])
def test_plain_base_gives_the_view_of_the_pasted_picture(photo, patch, u, antialias):
    base, alpha = torch.full_like(photo, 0.3), torch.rand_like(patch[:, :1])
    view = Compose(STAGES, value=0.3, antialias=antialias)
    oracle = view(paste(base, patch, alpha), u)
    torch.testing.assert_close(view(with_patch(base, patch, alpha), u), oracle, rtol=0, atol=1e-12)


def test_edges_of_the_alpha_do_not_darken(photo, patch, u):
    # White on white; the transparent part is black, and must not bleed into the edge of the disc.
    y, x = torch.meshgrid(torch.linspace(-1, 1, 25), torch.linspace(-1, 1, 50), indexing="ij")
    alpha = (x**2 + y**2 < 0.8).double()[None, None]
    ink = alpha.expand_as(patch)
    view = Compose(STAGES, value=1.0)(with_patch(torch.ones_like(photo), ink, alpha), u)
    torch.testing.assert_close(view, torch.ones_like(view), rtol=0, atol=1e-12)


def test_fine_patch_keeps_its_detail_at_close_range(photo):
    # Through an 80 x 120 picture of the scene, half of the patch's pixels would be lost.
    fine = torch.rand(1, 3, 160, 240, dtype=torch.float64)
    scene = Scene((Layer(photo, None, EYE), Layer(fine, None, EYE)), SIZE)
    view = Compose([Affine(scale=(2, 2))])(scene, torch.rand(1, 5, dtype=torch.float64))
    torch.testing.assert_close(view, fine[..., 40:120, 60:180], rtol=0, atol=1e-12)


def test_batch_of_scenes_equals_single_scenes(photo, patch):
    base, patches = torch.cat([photo, 1 - photo]), torch.cat([patch, patch.flip(-1)])
    alpha, u = torch.rand_like(patches[:, :1]), torch.rand(2, 13, dtype=torch.float64)
    view = Compose(STAGES)
    rows = [view(with_patch(base[i : i + 1], patches[i : i + 1], alpha[i : i + 1]), u[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(view(with_patch(base, patches, alpha), u), torch.cat(rows), rtol=0, atol=1e-12)


def test_gradient_reaches_every_texel_and_no_covered_pixel(photo, patch):
    photo.requires_grad_(), patch.requires_grad_()
    centre = Affine(scale=(0.4, 0.4))
    Compose([centre])(with_patch(photo, patch), torch.rand(1, 5, dtype=torch.float64)).sum().backward()
    assert (patch.grad != 0).all()
    inner = photo.grad[..., TOP + 10 : TOP + 15, LEFT + 10 : LEFT + 40]  # away from the edge, soft at this scale
    torch.testing.assert_close(inner, torch.zeros_like(inner), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_gradient(patch):
    base, ink = torch.rand(1, 1, 6, 8, dtype=torch.float64), torch.rand(1, 1, 3, 4, dtype=torch.float64)
    alpha, pull = 0.2 + 0.6 * torch.rand_like(ink), EYE * torch.tensor([[1.7], [1.9], [1]], dtype=torch.float64)

    def view(base, ink, alpha, pull, u):
        scene = Scene((Layer(base, None, EYE), Layer(ink, alpha, pull)), (6, 8))
        return Compose(STAGES)(scene, u)

    inputs = (base, ink, alpha, pull, torch.rand(1, 13, dtype=torch.float64))
    assert torch.autograd.gradcheck(view, [value.requires_grad_() for value in inputs])


def test_base_with_an_alpha_is_refused(photo):
    with pytest.raises(ValueError, match="bottom layer of a scene must be opaque"):
        Compose()(Scene((Layer(photo, photo[:, :1], EYE),), SIZE), torch.zeros(1, 0))
