"""The audit names faulty stages, and reports none in a sound pipeline."""

import random
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as tvf

from attacks import load_encoder
from tests.helpers.sampling import mostly_slow
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Perspective, audit

GEOMETRY = (Affine(degrees=20, scale=(0.75, 1.3), translate=0.1), Perspective(0.15))
CAMERA = Compose([*GEOMETRY, Brightness(0.1), Contrast((0.8, 1.2)), Downscale((48, 72))])


@pytest.fixture
def image(photo):
    return photo.float()


def through_numpy(images):
    return torch.tensor(images.numpy())


def without_graph(images):
    return torch.tensor(images.detach().numpy())


def posterize(images):
    return (images * 7).round() / 7


def kornia(name):
    def make():
        import kornia.augmentation

        return getattr(kornia.augmentation, name)(p=1.0)

    return make


@pytest.mark.slow
def test_sound_pipeline_has_full_coverage_one_resample_and_no_dead_stage(image):
    report = audit(CAMERA, image)
    names = ["affine + perspective (one resample)", "brightness", "contrast", "downscale"]
    assert [stage.name for stage in report.stages] == names
    assert report.first_dead is None and report.stationary is None
    assert not any(stage.dead_coordinates for stage in report.stages)
    assert report.coverage > 0.99 and 0.8 < report.effective_coverage <= 1
    assert report.view_coverage[1] < report.view_coverage[0] <= report.coverage
    assert report.resamples == 1 and report.minification[1] == 1
    assert all(stage.slope == pytest.approx(1, abs=0.05) for stage in report.stages)
    assert all(stage.bad == (0, 0) and stage.repeats for stage in report.stages)


DEAD = {
    "numpy": (lambda: through_numpy, "through_numpy", "takes no tensor that requires a gradient"),
    "no graph": (lambda: without_graph, "without_graph", "returns a tensor without a graph: a comparison"),
    "detach": (lambda: lambda images: images.detach() * 2, "lambda", "without a graph"),
    "round": (lambda: torch.round, "round", "gradient exactly zero everywhere"),
    "posterize": (lambda: posterize, "posterize", "gradient exactly zero everywhere"),
    "array": (lambda: lambda images: images.detach().numpy()[0].transpose(1, 2, 0), "lambda", "returns a numpy"),
    "uint8": (lambda: v2.ToDtype(torch.uint8, scale=True), "ToDtype", "returns uint8"),
    "picture": (lambda: v2.ToPILImage(), "ToPILImage", "PIL"),
    "nan forward": (lambda: lambda images: (images - 2).log(), "lambda", "NaN or inf forward"),
    "nan backward": (lambda: lambda images: (images - images).sqrt(), "lambda", "NaN or inf in backward"),
    "in place": (lambda: lambda images: images.exp().mul_(0.3), "lambda", "backward fails (RuntimeError"),
    "copied": (lambda: lambda images: (images + nn.Parameter(images)).detach().requires_grad_(), "lambda", "reach"),
    "kornia posterize": (kornia("RandomPosterize"), "RandomPosterize", "gradient exactly zero everywhere"),
    "kornia equalize": (kornia("RandomEqualize"), "RandomEqualize", "gradient exactly zero everywhere"),
    "kornia clahe": (kornia("RandomClahe"), "RandomClahe", "without a graph"),
}


@pytest.mark.parametrize("case", mostly_slow(DEAD, 3))
def test_a_dead_stage_is_named_with_the_reason(case, image):
    make, name, reason = DEAD[case]
    blur = v2.GaussianBlur(3)
    report = audit([blur, make(), v2.GaussianBlur(5)], image, draws=3)
    first, culprit, closing_stage = report.stages
    assert report.first_dead == culprit.name == name
    assert reason in culprit.dead and culprit.dead_draws > 0
    assert first.dead is None and closing_stage.dead is None and first.gain > 0 and closing_stage.gain > 0
    if culprit.dead_draws == 3 and not any(culprit.bad):
        assert report.coverage == 0 and bool(report.dead_zones.all())
        assert first.chain_in == first.chain_out == 0


def test_stages_alive_alone_but_dead_in_sequence_are_reported(image):
    def left(images):
        return torch.cat([images[..., :60], torch.zeros_like(images[..., 60:])], dim=-1)

    def right(images):
        return torch.cat([torch.zeros_like(images[..., :60]), images[..., 60:]], dim=-1)

    report = audit([left, right], image, draws=1)
    assert report.first_dead is None and report.coverage == 0
    assert "nothing passes them all" in report.warnings[0]


def test_nearest_reduction_by_four_covers_one_sixteenth_of_the_pixels(image, tmp_path):
    report = audit(v2.Resize((20, 30), InterpolationMode.NEAREST), image, draws=2)
    assert report.coverage == 1 / 16 == pytest.approx(report.effective_coverage, rel=1e-3)
    assert report.dead_zones.shape == (80, 120) and report.dead_zones.double().mean() == 15 / 16
    assert report.minification == (pytest.approx(4), pytest.approx(4)) and report.resamples == 1
    report.save_dead_zones(tmp_path / "dead.png")
    with Image.open(tmp_path / "dead.png") as file:
        picture = np.asarray(file).astype(int)
    assert (((picture[..., 0] - picture[..., 2]) > 100) == report.dead_zones.numpy()).all()


@pytest.mark.parametrize(("antialias", "aliasing"), [(True, 1), (False, pytest.approx(4, rel=0.01))])
def test_antialias_filter_of_a_foreign_resize_is_detected(image, antialias, aliasing):
    report = audit(v2.Resize((20, 30), antialias=antialias), image, draws=1)
    assert report.minification == (pytest.approx(4, rel=0.02), aliasing)
    assert report.coverage == (1 if antialias else 1 / 4)


def test_consecutive_resamples_are_counted(image):
    def turn_and_back(images):
        return tvf.rotate(tvf.rotate(images, 10, InterpolationMode.BILINEAR), -10, InterpolationMode.BILINEAR)

    report = audit([turn_and_back, v2.RandomPerspective(p=1, fill=None)], image, draws=2)
    assert report.resamples == 3 and any("interpolated 3 times" in text for text in report.warnings)
    assert report.minification is not None and report.first_dead is None


def test_identity_and_empty_pipeline_cover_all_pixels_evenly(image):
    for pipeline in (nn.Identity(), Compose(), []):
        report = audit(pipeline, image, draws=1)
        assert report.coverage == 1 and report.effective_coverage == pytest.approx(1, abs=0.01)
        assert report.first_dead is None and not report.warnings


def test_kornia_container_is_audited_stage_by_stage(image):
    import kornia.augmentation as K

    pipeline = K.AugmentationSequential(K.RandomAffine(20.0, p=1.0), K.RandomPosterize(3.0, p=1.0))
    report = audit(pipeline, image, draws=2)
    assert [stage.name for stage in report.stages] == ["RandomAffine", "RandomPosterize"]
    assert report.first_dead == "RandomPosterize"


@dataclass(frozen=True)
class Deaf:
    """A stage that detaches its coordinate from the graph."""

    dims = 2
    names = ("gain (x)", "nothing (1)")

    def values(self, u):
        return u

    def __call__(self, images, u):
        return images * (0.5 + 0.5 * u.detach()[:, :1, None, None])


def test_coordinate_with_effect_but_no_gradient_is_named(image):
    report = audit(Compose([Affine(degrees=10), Deaf()]), image, draws=2)
    assert [stage.dead_coordinates for stage in report.stages] == [(), ("deaf gain (x)",)]
    assert report.first_dead is None and "deaf: no gradient to deaf gain (x)" in report.warnings


@pytest.mark.slow
def test_stationary_loss_is_distinguished_from_a_dead_stage(image):
    encoder = load_encoder()
    sound = audit(CAMERA, image, encoder, draws=2)
    assert sound.stationary is True and sound.first_dead is None
    assert sound.stages[-1].name == "encoder Pocket" and sound.stages[-1].shape == (128,)
    assert all(at < 1e-4 * near for at, near in sound.flatness.values())
    dead = audit([CAMERA, posterize], image, encoder, draws=2)
    assert dead.stationary is False and dead.first_dead == "posterize"
    assert "the gradient dies in posterize" in str(dead)
    deaf = audit(CAMERA, image, lambda images: encoder(images).detach(), draws=1)
    assert deaf.stationary is False and deaf.first_dead == "encoder <lambda>"


def test_straight_through_estimate_is_distinguished_from_a_gradient(image):
    report = audit(lambda images: images**2 + (images - images.detach()), image, draws=1)
    assert report.stages[0].slope < 0.7 and any("straight-through" in text for text in report.warnings)


def test_change_of_colours_has_no_minification(image):
    mix = torch.tensor([[0.2, 1.1, -0.3], [-0.3, 0.2, 1.1], [1.1, -0.3, 0.2]])  # greys are unchanged, as by hue
    for colour in (lambda images: torch.einsum("ij,njhw->nihw", mix, images), lambda images: images**2):
        assert audit(colour, image, draws=1).minification is None


def test_randomness_is_replayed_and_generator_states_are_restored(image):
    def noisy(images):
        return images + 0.1 * torch.rand_like(images) + 0.1 * np.random.rand() + 0.1 * random.random()  # noqa: NPY002

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, second = (audit([noisy, v2.RandomErasing(p=0.5)], image, draws=4) for _ in range(2))
    assert str(first) == str(second) and all(stage.repeats for stage in first.stages)
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert str(first) != str(audit([noisy, v2.RandomErasing(p=0.5)], image, draws=4, seed=1))
    generator = torch.Generator().manual_seed(0)
    stubborn = audit(lambda images: images * torch.rand((), generator=generator), image, draws=2)
    assert not stubborn.stages[0].repeats and any("generator of its own" in text for text in stubborn.warnings)


@pytest.mark.slow
def test_arrays_pillow_images_and_unbatched_tensors_are_accepted(photo):
    array = (photo[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    reports = [audit(CAMERA, i, draws=1) for i in (array, Image.fromarray(array), photo.float(), photo[0].float())]
    assert len({report.coverage for report in reports}) == 1
    with torch.no_grad():
        assert audit(CAMERA, photo, draws=1).first_dead is None
    with torch.inference_mode():
        assert audit(CAMERA, photo.float() * 1, draws=1).first_dead is None
    with pytest.raises(FrozenInstanceError):
        reports[0].coverage = 0


def fails(images):
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("pipeline", "change", "message"),
    [
        (fails, {}, "stage `fails` fails on a picture: KeyError"),
        (Affine, {}, "`pipeline`"),
        (3, {}, "`pipeline`"),
        (lambda images: "text", {}, "must return images; got str"),
        (torch.round, {"draws": 0}, "`draws`"),
        (torch.round, {"image": torch.rand(3, 9, 9) * 255}, "divide 8-bit values by 255"),
        (torch.round, {"image": torch.rand(2, 3, 9, 9)}, "`image`"),
        (torch.round, {"image": np.zeros((9, 9))}, "`image`"),
    ],
)
def test_unauditable_input_is_refused_in_one_line(pipeline, change, message, image):
    with pytest.raises(ValueError, match=message) as error:
        audit(**({"pipeline": pipeline, "image": image} | change))
    assert "\n" not in str(error.value)
