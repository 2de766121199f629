"""The places of a patch in each picture, and what is printed round it."""

import pytest
import torch

from attacks.perturbations.patch.card_raster import Surround
from attacks.perturbations.patch.patch import Patch
from attacks.perturbations.patch.placement import Placements
from tests.helpers.sets import attack_pictures, double, random, seed, uniform
from transforms import Affine, Brightness, Compose, Perspective
from transforms.scene import taken
from transforms.wrappers import OnLayers

LEFT, RIGHT = ([[x, 0.25], [x + 0.25, 0.25], [x + 0.25, 0.75], [x, 0.75]] for x in (0.0, 0.5))


def images(count=2):
    return uniform(count, 3, 16, 32)


def texture():
    return uniform(1, 3, 8, 8, value=1)


def quads(rows):
    return torch.tensor(rows, dtype=double)


def paste(base, *lefts):
    for row, columns in enumerate(lefts):
        for column in columns:
            base[row, :, 4:12, column : column + 8] = texture()[0]
    return base


def test_the_texture_is_visible_in_each_of_several_places():
    result = attack_pictures(Patch((8, 8), [LEFT, RIGHT]), images(), texture())
    torch.testing.assert_close(result, paste(images(), (0, 16), (0, 16)), rtol=0, atol=1e-12)


def test_each_picture_has_its_own_places():
    cover = torch.tensor([[1.0, 1.0], [1.0, 0.0]])[..., None, None]
    patch = Patch((8, 8), Placements(quads([[LEFT, RIGHT], [RIGHT, LEFT]]), cover))
    pair = attack_pictures(patch, images(), texture())
    torch.testing.assert_close(pair, paste(images(), (0, 16), (16,)), rtol=0, atol=1e-12)
    separate = attack_pictures(patch.take(torch.tensor([1])), images()[1:], texture())
    torch.testing.assert_close(separate, paste(images(), (), (16,))[1:], rtol=0, atol=1e-12)


@pytest.fixture
def half():
    """A cover that hides the left half of the texture."""
    return torch.cat([torch.zeros(1, 1, 8, 4), torch.ones(1, 1, 8, 4)], dim=3)


def test_only_the_part_of_a_region_inside_the_shape_is_visible(half):
    masked = Patch((8, 8), Placements(quads([[LEFT]]), half), shape="ellipse")
    white, black = torch.ones_like(texture()), torch.zeros(2, 3, 16, 32, dtype=double)
    result = attack_pictures(masked, black, white)[:, 0, 4:12, :8]
    expected = (masked.alpha * half)[:, 0].to(double)
    torch.testing.assert_close(result, expected.expand(2, 8, 8), rtol=0, atol=1e-12)
    # Between pixels as well: the hidden part has no edge.
    share = Patch((8, 8), Placements(quads([[[[x + 0.01, y + 0.02] for x, y in LEFT]]]), half))
    assert (attack_pictures(share, black, white)[..., :4] == 0).all()


def overlap(low, high, count):
    """How much of each of `count` pixels lies from `low` to `high`."""
    at = torch.arange(count, dtype=double)
    return (torch.minimum(at + 1, at.new_tensor(high)) - torch.maximum(at, at.new_tensor(low))).clamp(0, 1)


@pytest.mark.parametrize("has_print", [False, True])
def test_a_patch_ends_at_its_exact_edge_and_not_at_a_texel(has_print):
    # Small texels on large pixels, and the reverse: the share of a pixel that is covered, at every edge.
    black, (left, top, right, low) = torch.zeros(2, 3, 16, 32, dtype=double), (5.3, 3.6, 20.2, 12.9)
    quad = [[x / 32, y / 16] for x, y in ((left, top), (right, top), (right, low), (left, low))]
    views = Compose([OnLayers([Brightness((0, 0))])]) if has_print else Compose()
    for size in ((4, 5), (40, 60)):
        scene = Patch(size, quad).scene(black, torch.ones(1, 3, *size, dtype=double))
        for view in (scene, taken(scene, torch.tensor([1, 0]))):
            result = views(view, torch.zeros(2, views.dims, dtype=double))[:, 0]
            expected = overlap(top, low, 16)[:, None] * overlap(left, right, 32)
            torch.testing.assert_close(result, expected.expand(2, 16, 32), rtol=0, atol=1e-9)


def sheet(times=1):
    picture = uniform(1, 3, 8 * times + 10, 8 * times + 13, value=3)
    return Surround(picture, top=4, left=5, times=times)


@pytest.mark.parametrize("times", [1, 3])
def test_a_surround_does_not_move_the_patch(times):
    camera = Compose([Affine(degrees=20, scale=(0.8, 1.2)), Perspective(0.1)])
    u = uniform(3, camera.dims, value=2)
    single, plain, with_border = images(1), Patch((8, 8), LEFT), Patch((8, 8), LEFT, surround=sheet(times))
    smooth = texture()[..., :2, :2].repeat_interleave(4, 2).repeat_interleave(4, 3)
    result = camera(with_border.scene(single, smooth), u)
    expected = camera(plain.scene(single, smooth), u)
    # Well inside the patch both show the texture; the finer sheet is another pyramid, so not to the last digit.
    inside = camera(plain.scene(torch.zeros_like(single), torch.ones_like(texture())), u)[:, :1]
    inner = -torch.nn.functional.max_pool2d(-inside, 5, 1, 2) > 0.999
    assert inner.sum() > 10
    assert ((result - expected).abs() * inner).max() < (1e-9 if times == 1 else 0.12)
    with_sheet, bare = (camera(item.scene(torch.zeros_like(single), texture()), u) for item in (with_border, plain))
    assert not torch.equal(with_sheet, bare)


def test_texels_of_a_sheet_align_with_pixels():
    single, original = images(1), sheet(1)
    result = attack_pictures(Patch((8, 8), [[x + 0.25, y] for x, y in LEFT], surround=original), single, texture())
    expected, full = single.clone(), original.picture.clone()
    full[..., 4:12, 5:13] = texture()
    expected[..., 0:16, 3:24] = full[..., 0:16, :]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_paper_is_visible_where_a_patch_is_transparent():
    alpha = Patch((8, 8), shape="ellipse").alpha
    white = Surround(torch.ones(1, 3, 8, 8, dtype=double), 0, 0, 1)
    result = white.embed(torch.zeros(1, 3, 8, 8, dtype=double), alpha)
    torch.testing.assert_close(result, (1 - alpha.to(double)).expand(1, 3, 8, 8), rtol=0, atol=1e-12)


def test_a_grey_patch_stays_grey_and_descends():
    patch = Patch((8, 8), start_from="grey", grey=True)
    grad = random(1, 3, 8, 8)
    shift = patch.move(patch.start(images(), seed()), patch.descend(grad, 0.1, texture(), images()), images())
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), rtol=0, atol=0)
    torch.testing.assert_close(shift[:, :1], 0.5 - 0.1 * grad.sum(1, keepdim=True).sign(), rtol=0, atol=1e-12)
    first = Patch((8, 8), grey=True).start(images(), seed())
    assert first.min() < 0.1 and first.max() > 0.9
    for item in (first, patch.noise(images(), seed()), patch.quantise(texture(), images())):
        assert torch.equal(item, item[:, :1].expand_as(item))


@pytest.mark.parametrize(
    ("quad", "cover", "size", "surround", "message"),
    [
        (torch.rand(4, 2), None, 8, None, "four corners"),
        (quads([[LEFT]]), torch.ones(1, 2, 1, 1), 8, None, "`cover` must be"),
        (quads([[LEFT]]), torch.ones(1, 1, 8, 8), 4, None, "as large as texture or card"),
        (quads([[LEFT]]), torch.ones(1, 1, 8, 8), 8, sheet(1), "as large as texture or card"),
    ],
)
def test_impossible_placements_are_refused(quad, cover, size, surround, message):
    with pytest.raises(ValueError, match=message):
        Patch((size, size), Placements(quad, cover), surround=surround)


@pytest.mark.parametrize("surround", [None, sheet(1), sheet(3)])
def test_a_mask_of_the_picture_hides_patch_and_card_where_it_is_dark(surround):
    mask = torch.zeros(1, 1, 16, 32)
    mask[..., 10:] = 1
    quad, camera = quads([[[[x + 0.25, y] for x, y in LEFT]]]), Compose()
    bare, card = Patch((8, 8), Placements(quad), surround=surround), images(1)
    hidden = Patch((8, 8), Placements(quad, None, mask), surround=surround)
    result = camera(hidden.scene(card, texture()), torch.zeros(1, 0, dtype=double))
    expected = camera(bare.scene(card, texture()), torch.zeros(1, 0, dtype=double))
    assert torch.equal(result[..., :9], card[..., :9])
    inside = (..., slice(4, 12), slice(11, 15))  # the card ends elsewhere, and a mask leaves it a soft edge
    torch.testing.assert_close(result[inside], expected[inside], rtol=0, atol=1e-6)
    assert hidden.take(torch.tensor([0])).placements.cover.shape == hidden.placements.cover.shape
    assert (hidden.footprint((16, 32)).layers[1].pixels.shape[2:]) == (8, 8)
