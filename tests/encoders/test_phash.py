"""The differentiable pHash against PyPI's ImageHash, on PNG files."""

import io
import math

import imagehash
import pytest
import scipy.fft
import torch
from PIL import Image

from attacks import EOT, PGD, Linf, attack, bank, evaluate
from attacks.data.gallery import photographs, tiles
from attacks.data.images import to_bytes
from attacks.encoders.phash import FREQUENCIES, SIDE, Phash, above_median, bits, to_grey
from attacks.objectives.bits import Bits
from tests.helpers import encoder_laws as laws
from transforms import Brightness, Compose, resize

double = torch.float64


def seed(value=0):
    return torch.Generator().manual_seed(value)


def as_file(image):
    """(3,H,W) as a PNG file, read back by Pillow."""
    file = io.BytesIO()
    Image.fromarray(to_bytes(image)).save(file, format="PNG")
    return Image.open(file)


def imagehash_bits(images):
    """ImageHash's bits of each picture's file: (N,64) bool."""
    return torch.stack([torch.from_numpy(imagehash.phash(as_file(image)).hash).flatten() for image in images])


def count_flips(images, second):
    return (imagehash_bits(images) != imagehash_bits(second)).sum(1).double()


#: Pictures larger and smaller than the grid of the hash, square, tall and wide: batches of one size.
SETS = {
    "tiles": lambda: [tiles(128).spread(120).images],
    "small": lambda: [tiles(64).spread(40).images],
    "hash size": lambda: [tiles(32).spread(40).images],
    "tiny": lambda: [tiles(32).spread(40).images[..., 5:24, 9:20]],
    "photographs": lambda: [photo[None] for photo in photographs().values()],
    "tall": lambda: [photo[None, :, :, : photo.shape[1] // 5] for photo in photographs().values()],
    "wide": lambda: [photo[None, :, : photo.shape[2] // 5] for photo in photographs().values()],
    "noise": lambda: [torch.rand(20, 3, 70, 90, generator=seed())],  # rounded to 8 bits as in a file
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_bits_equal_imagehash(name):
    for images in SETS[name]():
        expected = imagehash_bits(images)
        for dtype in (torch.float32, double):
            assert torch.equal(bits(Phash()(images.to(dtype))), expected)


def test_features_keep_the_dtype_and_half_becomes_float32():
    # Rounded values are whole numbers; k/255 in float32 would differ in the fifth digit.
    images = tiles(128).spread(20).images
    assert not Phash().training and not Phash().state_dict()
    assert torch.equal(Phash()(images), Phash()(images.double()).float())
    for dtype_of_images, dtype in ((torch.float16, torch.float32), (torch.float32, torch.float32), (double, double)):
        assert Phash()(images[:2].to(dtype_of_images)).dtype == dtype


def test_grey_levels_equal_pillow():
    images = torch.rand(2, 3, 200, 300, generator=seed())
    expected = torch.stack([torch.tensor(list(as_file(image).convert("L").tobytes())) for image in images])
    assert torch.equal((255 * to_grey(images)).round().flatten(1), expected.float())


def test_the_transform_equals_the_scipy_dct():
    levels = 255 * torch.rand(3, 1, SIDE, SIDE, generator=seed(), dtype=double)
    spectrum = scipy.fft.dctn(levels.numpy(), type=2, axes=(2, 3))[:, 0, :FREQUENCIES, :FREQUENCIES].reshape(3, -1)
    distances, expected = above_median(levels), torch.from_numpy(spectrum) / 64
    torch.testing.assert_close(distances - distances[:, :1], expected - expected[:, :1], rtol=0, atol=1e-9)
    assert (distances > 0).sum(1).tolist() == [32] * 3  # half of them lie above the median


def test_only_bits_of_tied_frequencies_may_differ_from_imagehash():
    # One colour, and a mirror image: ImageHash compares rounding errors of zeros. All other bits are equal.
    flat = torch.full((1, 3, 64, 64), 0.3)
    mirrored = tiles(128).images[:20]
    mirrored = torch.cat([mirrored, mirrored.flip(3)], dim=3)
    for images, limit in ((flat, 64), (mirrored, 33)):
        distances = Phash()(images.double())
        open_ = distances.abs() < 1e-6
        assert (open_.sum(1) <= limit).all()
        assert ((bits(distances) == imagehash_bits(images)) | open_).all()
    assert (~open_).sum(1).min() > 30


def soft(images):
    """The same hash without rounding, implemented separately."""
    grey = (images * images.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    return above_median(255 * resize(grey, (SIDE, SIDE), "pil_lanczos"))


def test_gradcheck_of_the_soft_part():
    levels = 255 * torch.rand(1, 1, SIDE, SIDE, generator=seed(), dtype=double)
    laws.assert_slope(above_median, levels)
    images = 0.2 + 0.6 * torch.rand(1, 3, 9, 40, generator=seed(), dtype=double)
    laws.assert_slope(soft, images)


def test_the_gradient_equals_that_of_the_hash_without_rounding():
    # Away from the ends of the range: where the 8-bit resize clips an overshoot, the hash has no gradient.
    images = 0.2 + 0.6 * tiles(128).spread(12).images.double()
    way = torch.randn(12, 64, generator=seed(), dtype=double)
    way = way - way.mean(1, keepdim=True)  # the choice of the median frequency cancels out
    grads = []
    for encoder in (Phash(), soft):
        leaf = images.clone().requires_grad_()
        grads.append(torch.autograd.grad((way * encoder(leaf)).sum(), leaf)[0])
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3 * grads[1].abs().max().item())


def test_every_pixel_has_a_gradient_at_both_ends_of_the_range():
    black_or_white = (torch.rand(2, 3, 64, 64, generator=seed()) > 0.5).float()  # a clamp may have no gradient there
    for images, share in ((tiles(128).spread(8).images, 1.0), (black_or_white, 0.99)):
        leaf = images.clone().requires_grad_()
        Bits()(Phash()(leaf), torch.randn(len(leaf), 64, generator=seed())).sum().backward()
        assert leaf.grad.isfinite().all()
        assert (leaf.grad != 0).double().mean() >= share


def test_bits_loss_gradcheck():
    features, anchor = 20 * torch.randn(2, 3, 64, generator=seed(), dtype=double)
    assert torch.autograd.gradcheck(lambda x: Bits()(x, anchor), features.requires_grad_())


def test_bits_loss_counts_unflipped_bits():
    anchor = torch.randn(3, 64, generator=seed())
    far = 1e6 * anchor.sign()
    share = torch.tensor([0, 16, 64])
    far = torch.where(torch.arange(64) < share[:, None], -far, far)
    torch.testing.assert_close(Bits()(far, anchor), 1 - 2 * share / 64, rtol=0, atol=1e-4)
    on_edge = Bits(5.0)(5 * anchor.sign(), anchor)
    torch.testing.assert_close(on_edge, torch.full((3,), 0.5))


def test_bits_gradient_is_largest_at_the_median_and_never_zero():
    distances = torch.tensor([0.0, 1, 10, 1e4])
    features = torch.cat([distances, -distances])[None].requires_grad_()
    Bits()(features, torch.ones(1, 8)).sum().backward()
    pull = features.grad[0]
    assert (pull > 0).all()
    assert (pull[:4].diff() < 0).all()
    torch.testing.assert_close(pull[:4], pull[4:])


def test_evaluation_of_a_hash_uses_hamming_distance():
    # The cosine of the features would be nearly 1 everywhere, because the mean dominates.
    marks = Phash().signature(torch.randn(9, 64, generator=seed(), dtype=double))
    assert marks.dtype == double and set(marks.unique().tolist()) == {-1.0, 1.0}
    images, encoder = tiles(128).spread(12).images, Phash()
    views = bank(Compose([Brightness(0.3)]), 4, seed=0, purpose="test")
    with torch.no_grad():
        clean, features = encoder(images), views.features(images, encoder, 4)
    scores = evaluate(images, clean, clean, encoder=encoder, bank=views)
    differ = (bits(features)[:, :, None] != bits(clean)).sum(3)  # (12 pictures, 4 views, 12 of the gallery)
    assert torch.equal(scores.cosine, 1 - 2 * differ.diagonal(dim1=0, dim2=2).T / 64)
    assert torch.equal(differ.gather(2, scores.nearest[:, :, None])[..., 0], differ.amin(2))
    assert (scores.cosine < 1).any()


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_margin_must_be_positive(margin):
    with pytest.raises(ValueError, match="`margin` must"):
        Bits(margin)


@pytest.mark.slow
def test_an_attack_flips_more_bits_of_imagehash_than_noise():
    everything, linf, encoder = tiles(256), Linf(8 / 255), Phash()
    images = everything.spread(8).images
    with torch.no_grad():
        clean = encoder(images)
    setup = {"encoder": encoder, "objective": Bits(), "perturbation": linf, "optimiser": PGD(), "eot": EOT(views=1)}
    *_, last = attack(images, clean, **setup, steps=30)
    flips = count_flips(images, images + linf.quantise(last.delta, images))
    assert flips.min() >= 8
    assert flips.mean() >= 20
    # Over all tiles, because noise flips up to six bits of one: half of the bits are set, so they flip in pairs.
    images = everything.images
    noise = count_flips(images, images + linf.quantise(linf.noise(images, seed()), images))
    assert noise.mean() <= 1
