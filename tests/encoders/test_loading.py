"""The pocket encoder's architecture and the reading of weights; nothing here depends on the weights that ship."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from attacks.encoders.loading import load_encoder, untrained
from attacks.encoders.preprocess import Preprocess

double = torch.float64


@pytest.fixture(scope="module")
def weights():
    """An untrained encoder's, with the statistics of some pictures; those of a fresh one leave it half dead."""
    encoder = untrained()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    encoder(torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)))
    return {name: t for name, t in encoder.state_dict().items() if not name.endswith("num_batches_tracked")}


@pytest.fixture
def saved(tmp_path, weights):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture
def encoder(saved):
    return load_encoder(weights=saved)


def test_loaded_encoder_is_frozen_and_evaluates(encoder):
    assert not any(module.training for module in encoder.modules())
    assert not any(weight.requires_grad for weight in encoder.parameters())


def test_every_weight_is_that_of_the_file(encoder, weights):
    state = encoder.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    images = torch.rand(2, 3, 96, 96)
    assert not torch.equal(encoder(images), untrained().eval()(images))


def test_half_precision_is_widened(tmp_path, weights):
    save_file({name: tensor.half() for name, tensor in weights.items()}, tmp_path / "half.safetensors")
    state = load_encoder(weights=tmp_path / "half.safetensors").state_dict()
    for name, tensor in weights.items():
        assert state[name].dtype == torch.float32
        assert torch.equal(state[name], tensor.half().float())


def test_a_whole_state_dict_is_taken_too(tmp_path):
    # `state_dict()` also counts batches, a number that evaluation never reads.
    save_file(untrained(1).state_dict(), tmp_path / "whole.safetensors")
    images = torch.rand(1, 3, 96, 96)
    found = load_encoder(weights=tmp_path / "whole.safetensors")(images)
    assert torch.equal(found, untrained(1).eval()(images))


SPOILT = {
    "missing": (lambda state: state.pop("head.bias"), "1 keys missing.*head.bias"),
    "surplus": (lambda state: state.update(extra=torch.zeros(1)), "1 unknown.*extra"),
    "shape": (lambda state: state.update({"head.bias": torch.zeros(3)}), r"`head.bias`.*\(128,\).*\(3,\)"),
    "empty": (lambda state: state.clear(), "keys missing"),
}


def refusal(path, message, kind=ValueError):
    with pytest.raises(kind, match=message) as caught:
        load_encoder(weights=path)
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT)
def test_weights_of_another_encoder_are_refused(tmp_path, weights, spoil, message):
    state = dict(weights)
    spoil(state)
    save_file(state, tmp_path / "other.safetensors")
    refusal(tmp_path / "other.safetensors", message)


class Bomb:
    """Its pickle runs code when it is read."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def test_a_pickle_is_refused_unread(tmp_path):
    torch.save({"head.bias": Bomb()}, tmp_path / "weights.pt")
    refusal(tmp_path / "weights.pt", "more than tensors.*refused")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty file"), (b"only text", "not a safetensors file"), (b"\xff" * 100, "not a safetensors file")],
    ids=["empty", "text", "ff"],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    (tmp_path / "weights.safetensors").write_bytes(content)
    refusal(tmp_path / "weights.safetensors", message)


def test_a_truncated_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-100])
    refusal(saved, "not a safetensors file")


def test_a_missing_file_is_named(tmp_path):
    refusal(tmp_path / "none.safetensors", "do not exist", FileNotFoundError)


def test_an_unknown_encoder_is_named():
    with pytest.raises(ValueError, match=r"`encoder` must be one of pocket, phash, torchvision, .*; got 'clip'"):
        load_encoder("clip")


def test_untrained_follows_its_seed_and_leaves_torchs_alone():
    before = torch.random.get_rng_state()
    first, again, other = (untrained(seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("size", [(96, 96), (8, 8), (1, 1), (96, 200), (257, 31)])
def test_any_size_works(encoder, size):
    found = encoder(torch.rand(2, 3, *size))
    assert found.shape == (2, 128)
    assert found.isfinite().all()


def test_a_picture_does_not_feel_its_neighbours(encoder):
    images, encoder = torch.rand(3, 3, 60, 70, dtype=double), encoder.double()
    alone = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(alone, encoder(images), rtol=1e-12, atol=1e-12)


def test_the_gradient_reaches_every_pixel(encoder):
    images = torch.rand(1, 3, 200, 150, requires_grad=True)
    (encoder(images) * torch.randn(128)).sum().backward()
    assert (images.grad != 0).any(1).all()


def test_it_tells_where_things_are(encoder):
    # The head keeps the layout: a mirrored picture is another one.
    image = torch.rand(1, 3, 96, 96)
    assert (encoder(image) - encoder(image.flip(-1))).abs().max() > 0.1 * encoder(image).std()


@pytest.mark.parametrize("images", [torch.rand(3, 96, 96), torch.rand(1, 1, 96, 96), torch.rand(1, 4, 96, 96)])
def test_pictures_of_another_shape_are_refused(encoder, images):
    with pytest.raises(ValueError, match=r"\(N,3,H,W\)"):
        encoder(images)


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(80, 120), (10, 13), (24, 24)])
def test_preprocess_is_pillows_resize_and_a_normalisation(photo, kernel, size):
    # Pillow's float pictures (mode F) have no rounding, and no clamp either.
    picture, mean, std = photo[:, :, : size[0], : size[1]], (0.5, 0.4, 0.3), (0.25, 0.2, 0.5)
    resample = getattr(Image.Resampling, kernel.upper())
    planes = [Image.fromarray(p.numpy().astype(np.float32)).resize((24, 24), resample) for p in picture[0]]
    wanted = (np.stack(planes).clip(0, 1) - np.array(mean)[:, None, None]) / np.array(std)[:, None, None]
    found = Preprocess(24, f"pil_{kernel}", mean, std)(picture)
    torch.testing.assert_close(found, torch.tensor(wanted)[None], rtol=0, atol=1e-5)


def test_preprocess_clamps_what_a_kernel_overshoots():
    edge = torch.zeros(1, 3, 48, 48)
    edge[..., 25:] = 1
    found = Preprocess(24, "pil_bicubic", (0, 0, 0), (1, 1, 1))(edge)
    assert found.min() == 0
    assert found.max() == 1


def test_the_encoder_is_its_preprocessing_and_its_network(encoder):
    images = torch.rand(2, 3, 50, 60)
    assert isinstance(encoder, nn.Module)
    small = 0.5 + 0.25 * encoder.preprocess(images)
    torch.testing.assert_close(encoder(small), encoder(images), rtol=1e-4, atol=1e-4)
