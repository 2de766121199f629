"""The pocket encoder: its architecture, the reading of weights, and the weights that come with the package."""

import sys

import pytest
import torch
from hydra import compose, initialize_config_dir
from safetensors.torch import save_file
from torch import nn

from attacks import EOT, PGD, Away, Linf, bank, evaluate, load_encoder, solve
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders import untrained
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.inference.pairs import sign_flips
from attacks.run import CONFIGS, register
from attacks.schema.validate import validate
from attacks.study.pipeline import pipeline


@pytest.fixture(scope="module")
def setting():
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        camera = pipeline(validate(compose("run", overrides=["config=quickstart"])).transforms)
    encoder, everything = load_encoder("pocket"), tiles(128)
    rows = [i for i, name in enumerate(everything.names) if name.split("-")[0] in HELD_OUT]
    gallery = encoder(everything.images)
    photos = [everything.names[row].split("-")[0] for row in rows]
    return camera, encoder, everything.images[rows], torch.tensor(rows), gallery, photos


def by_photo(values, photos):
    """The mean of each photograph's tiles, (HELD_OUT,)."""
    means = values.double().flatten(1).mean(dim=1)
    return torch.stack([means[[i for i, name in enumerate(photos) if name == photo]].mean() for photo in HELD_OUT])


def recall(scores, rows, photos):
    return float(by_photo(scores.nearest == rows[:, None], photos).mean())


def test_weights_are_small_and_the_gallery_is_large(setting):
    *_, rows, gallery, photos = setting
    assert POCKET_WEIGHTS.stat().st_size <= 1_500_000
    assert len(gallery) >= 200 and len(rows) >= 30
    assert set(photos) == set(HELD_OUT)


@pytest.mark.nightly
def test_clean_and_noisy_views_are_recognised(setting):
    camera, encoder, images, rows, gallery, photos = setting
    views = bank(camera, 128, seed=3, purpose="test")
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(0))
    clean = evaluate(images, gallery[rows], gallery, encoder=encoder, bank=views)
    assert recall(clean, rows, photos) >= 0.95
    assert recall(evaluate(noisy, gallery[rows], gallery, encoder=encoder, bank=views), rows, photos) >= 0.93


@pytest.mark.nightly
@pytest.mark.parametrize("eps", [16, 8])
def test_eot_survives_the_camera_better_than_the_plain_attack(setting, eps):
    camera, encoder, images, rows, gallery, photos = setting
    sample = [i for photo in HELD_OUT for i in [j for j, name in enumerate(photos) if name == photo][:2]]
    images, rows, photos = images[sample], rows[sample], [photos[i] for i in sample]
    anchors, budget = gallery[rows], Linf(eps / 255)
    views = bank(camera, 128, seed=3, purpose="test")
    scores = {}
    for arm, eot, steps in (("no_eot", EOT(views=1), 8), ("eot", EOT(camera), 100)):  # more steps make it weaker
        parts = {"objective": Away(), "perturbation": budget, "optimiser": PGD(), "eot": eot, "steps": steps}
        best = solve(images, anchors, encoder=encoder, **parts)
        attacked_images = images + budget.quantise(best.delta, images)
        scores[arm] = evaluate(attacked_images, anchors, gallery, encoder=encoder, bank=views)
    plain, robust = (recall(scores[arm], rows, photos) for arm in ("no_eot", "eot"))
    assert robust <= plain - 0.15
    cosines = [by_photo(scores[arm].cosine, photos) for arm in ("no_eot", "eot")]
    difference = cosines[1] - cosines[0]
    assert difference.mean() < 0 and sign_flips(difference, difference * 0).p < 0.05


@pytest.fixture(scope="module")
def weights():
    """Weights of an untrained encoder with batch statistics of pictures; the initial ones leave half of it dead."""
    encoder = untrained()
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    encoder(torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)))
    return {name: t for name, t in encoder.state_dict().items() if not name.endswith("num_batches_tracked")}


@pytest.fixture
def weights_file(tmp_path, weights):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture
def encoder(weights_file):
    return load_encoder(weights=weights_file)


def test_weights_are_those_of_the_file_without_a_gradient(encoder, weights):
    state = encoder.state_dict()
    assert not any(module.training for module in encoder.modules())
    assert not any(weight.requires_grad for weight in encoder.parameters())
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    images = torch.rand(2, 3, 96, 96)
    assert not torch.equal(encoder(images), untrained().eval()(images))


@pytest.mark.parametrize(
    ("family", "extra"),
    [("timm", "timm"), ("open_clip", "clip"), ("transformers", "hf"), ("diffusers", "vae"), ("onnx", "onnx")],
)
def test_a_missing_library_is_named(monkeypatch, tmp_path, family, extra):
    monkeypatch.setitem(sys.modules, family, None)
    (tmp_path / "model").write_bytes(b"any")
    with pytest.raises(ValueError, match=rf'{family} cannot be imported .*: pip install "viewproof\[{extra}\]"'):
        load_encoder(family, str(tmp_path / "model"))


def test_an_unknown_encoder_is_named():
    with pytest.raises(ValueError, match=r"`encoder` must be one of pocket, phash, .*torchvision, .*; got 'clip'"):
        load_encoder("clip")


@pytest.mark.parametrize("widths", [(16, 24, 40, 56), (8, 8, 8, 8)])
def test_a_file_of_another_width_gives_an_encoder_of_that_width(tmp_path, widths):
    network = untrained(3, widths).eval()
    save_file(network.state_dict(), tmp_path / "narrow.safetensors")
    encoder_of_file = load_encoder("pocket", weights=tmp_path / "narrow.safetensors")
    images = torch.rand(2, 3, 96, 96)
    assert torch.equal(encoder_of_file(images), network(images)) and encoder_of_file(images).shape == (2, 128)


@pytest.mark.parametrize("channels", [0, 5000])
def test_a_file_cannot_ask_for_a_huge_or_an_empty_encoder(tmp_path, channels):
    state = untrained().state_dict() | {"stem.0.weight": torch.zeros(channels, 3, 5, 5)}
    save_file(state, tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"`stem.0.weight` must have shape \(32, 3, 5, 5\)"):
        load_encoder("pocket", weights=tmp_path / "odd.safetensors")


@pytest.mark.parametrize("size", [(96, 96), (8, 8), (1, 1), (96, 200), (257, 31)])
def test_any_size_works(encoder, size):
    features = encoder(torch.rand(2, 3, *size))
    assert features.shape == (2, 128)
    assert features.isfinite().all()


def test_every_pixel_has_a_gradient_and_mirroring_changes_the_features(encoder):
    images = torch.rand(1, 3, 200, 150, requires_grad=True)
    (encoder(images) * torch.randn(128)).sum().backward()
    assert (images.grad != 0).any(1).all()
    image = torch.rand(1, 3, 96, 96)
    assert (encoder(image) - encoder(image.flip(-1))).abs().max() > 0.1 * encoder(image).std()
