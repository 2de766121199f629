"""The parts of a run against the resizers of a platform: a radius in decibels, ratios."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from attacks.data.gallery import tiles
from attacks.data.images import to_bytes
from attacks.resizers.pipeline import resamplers
from attacks.run import CONFIGS, register
from attacks.schema import validate as schema
from attacks.study.assembly import build
from attacks.study.perturbation import radius_of
from transforms.wrappers import OneOf

#: The resizers of transforms=resizers, in their order.
LIBRARIES = ("OpenCV linear", "OpenCV cubic", "OpenCV nearest", "torch bilinear", "torch bicubic", "Pillow nearest")
#: Two levels of 255 after the pocket encoder's normalisation: OpenCV's versions round ties differently.
TWO_LEVELS = 2 / 255 / 0.25


def build_run(*words):
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        node = compose("run", overrides=["config=smoke", "transforms=resizers", "data.count=1", *words])
    return build(schema.validate(node))


@pytest.mark.slow
def test_a_radius_in_decibels_is_the_psnr_of_each_picture():
    images = torch.rand(2, 3, 40, 50)
    for text, psnr in (("28dB", 28.0), ("40dB", 40.0)):
        mean_square = radius_of("l2", text, images) ** 2 / images[0].numel()
        assert -10 * torch.tensor(mean_square).log10() == pytest.approx(psnr)
    assert radius_of("l2", "4", images) == 4.0
    assert build_run("perturbation=l2", "perturbation.eps=28dB").perturbation.eps == pytest.approx(
        (3 * 128 * 128 * 10**-2.8) ** 0.5
    )


@pytest.mark.slow
@pytest.mark.parametrize("position", [0.05, 0.5, 0.95])
def test_views_of_resizers_are_what_the_encoder_gets_behind_the_library_calls(position):
    """The thumbnail by the library's own call and then the encoder's own resize, as the part deployment judges it."""
    parts, (available, _) = build_run(), resamplers()
    image = tiles(128, ["cell"]).images[:1]
    pixels = to_bytes(image[0])
    choice = next(stage for stage in parts.transforms.stages if isinstance(stage, OneOf))
    for stage, library in zip(choice.stages, LIBRARIES, strict=True):
        u = torch.full((1, stage.dims), position)
        side = int(stage.values(u))
        thumbnail = torch.from_numpy(available[library](pixels, (side, side))).permute(2, 0, 1)[None] / 255
        expected = parts.encoder.preprocess(thumbnail)
        assert (parts.encoder.preprocess(stage(image, u)) - expected).abs().amax() <= TWO_LEVELS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("evaluate.ratios=[]", "`evaluate.ratios` must be different numbers"),
        ("evaluate.ratios=[1,1]", "`evaluate.ratios` must be different numbers"),
        ("evaluate.ratios=[0.01]", "`evaluate.ratios` must be different numbers"),
        ("perturbation.eps=28dB", "`perturbation.eps` must be a number or a fraction"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(word, message):
    with pytest.raises(ValueError, match=message):
        build_run(word)
