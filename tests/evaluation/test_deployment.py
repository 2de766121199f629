"""Files through real codecs and resamplers: each cell against its direct computation."""

import sys
from io import BytesIO

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, features

from attacks.data.gallery import tiles
from attacks.data.images import to_bytes
from attacks.encoders import Defended, Phash, Preprocess, untrained, with_preprocess
from attacks.evaluation.classes import Classes
from attacks.evaluation.clusters import Sample
from attacks.evaluation.deployment import deployed_size, deployment, deployment_summary
from attacks.evaluation.judge import Judge, cells_of
from attacks.evaluation.judge import score_cells as judge_cells
from attacks.evaluation.scores import embed
from attacks.resizers.pipeline import at_ratios, resamplers, size_at
from tests.helpers.small import small
from transforms import Downscale, Jpeg, resize
from transforms.resizing.resize import target_size

ENCODER = untrained().eval().requires_grad_(False)
SIZE = (24, 30)
ROWS = torch.tensor([4, 0, 2])
SAMPLE = Sample(ROWS, ("a", "b", "c"), ("one", "two", "one"))


def judge_of(clean):
    """A judge whose pictures are the rows of its gallery."""
    own = embed(clean, ENCODER, torch.device("cpu"))
    return Judge(ENCODER, own, own, Classes((), own), torch.arange(len(own)))


@pytest.fixture(scope="module")
def deployment_case():
    """Three pictures of five, clean and with noise, which stands for both attacks; the judge, the deployment, and its
    cells by codec, resampler and arm."""
    clean = tiles(40).spread(5).images
    judge = judge_of(clean)
    noise = torch.randint(-25, 26, clean.shape, generator=torch.Generator().manual_seed(0)) / 255
    noisy = ((clean + noise).clamp(0, 1) * 255).round() / 255
    arms = {"clean": clean[ROWS], "no_eot": noisy[ROWS].flip(3), "eot": noisy[ROWS]}
    result = deployment(arms, SAMPLE, judge, SIZE)
    return arms, judge, result, cells_of(result[0], "codec", "resampler", "arm")


def direct(pixels, codec, resampler):
    """The picture of the cell by direct library calls."""
    kind, _, quality = codec.partition(" ")
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind.upper(), **({"quality": int(quality)} if quality else {}))
    picture = Image.open(file).convert("RGB")
    library, *names = resampler.split()
    if library == "Pillow":
        return np.array(picture.resize(SIZE[::-1], getattr(Image.Resampling, names[0].upper())))
    if library == "OpenCV":
        return cv2.resize(np.asarray(picture), SIZE[::-1], interpolation=getattr(cv2, f"INTER_{names[0].upper()}"))
    if library == "torch":
        levels = torch.from_numpy(np.array(picture).transpose(2, 0, 1)[None].copy())
        resized = F.interpolate(levels, SIZE, mode=names[-1], antialias=len(names) > 1, align_corners=False)
        return resized[0].permute(1, 2, 0).numpy()
    return np.array(picture)


@pytest.mark.slow
def test_every_cell_equals_its_direct_computation(deployment_case):
    arms, judge, (rows, missing, _), cells = deployment_case
    content = deployment_summary(rows)
    assert len({(cell["codec"], cell["resampler"]) for cell in content["cells"]}) == len(content["cells"]) == 6 * 13
    assert (content["pictures"], content["clusters"], missing, len(rows)) == (3, 2, (), 78 * 3 * 3)
    for (codec, resampler, arm), scores in cells.items():
        pixels = (arms[arm] * 255).round().byte().permute(0, 2, 3, 1).numpy()
        pictures = np.stack([direct(picture, codec, resampler) for picture in pixels])
        views = torch.from_numpy(pictures.astype(np.float32) / np.float32(255)).permute(0, 3, 1, 2).contiguous()
        with torch.no_grad():
            cosine = F.cosine_similarity(ENCODER(views)[:, None], judge.own[None], dim=2)
        expected = cosine.gather(1, ROWS[:, None]).double()
        torch.testing.assert_close(scores.cosine, expected, rtol=0, atol=1e-5)
        assert torch.equal(scores.success, cosine.argmax(1, keepdim=True) != ROWS[:, None])


@pytest.mark.slow
def test_the_example_is_the_first_picture_of_the_last_arm(deployment_case):
    arms, _, (_, _, example), cells = deployment_case
    pixels = (arms["eot"][0] * 255).round().byte().permute(1, 2, 0).numpy()
    assert torch.equal(example.viewed, torch.from_numpy(pixels))  # smaller than what is shown
    for name, resized in example.resized.items():
        assert torch.equal(resized, torch.from_numpy(direct(pixels, "PNG", name)))
        assert example.success[name] == bool(cells["PNG", name, "eot"].success[0, 0])
    assert len(example.resized) == 13


@pytest.mark.slow
def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr(features, "check", lambda name: name != "webp")
    clean = tiles(40).spread(2).images
    judge = judge_of(clean)
    rows, missing, _ = deployment({"clean": clean}, Sample(torch.arange(2), ("a", "b"), ("a", "b")), judge, SIZE)
    cells = deployment_summary(rows)["cells"]
    assert {cell["difference"] for cell in cells} == {None}  # there is no attack
    assert len(cells) == 5 * 9
    assert not any("OpenCV" in cell["resampler"] or "WebP" in cell["codec"] for cell in cells)
    webp, opencv = missing
    assert webp.startswith("WebP 80: ")
    assert opencv.startswith("OpenCV area, OpenCV linear, OpenCV cubic, OpenCV nearest: ")


def test_ratios_multiply_the_size_of_the_resampler(monkeypatch):
    clean = tiles(40).spread(2).images
    judge = judge_of(clean)
    judged_pictures = {}

    def record(_, pictures, rows, bank):
        judged_pictures[len(judged_pictures)] = pictures
        return judge_cells(judge, pictures, rows, bank)

    monkeypatch.setattr("attacks.evaluation.deployment.score_cells", record)
    monkeypatch.setattr("attacks.evaluation.deployment.codecs", lambda: ({"PNG": lambda pixels: pixels}, []))
    sample = Sample(torch.arange(2), ("a", "b"), ("a", "b"))
    rows, _, _ = deployment({"clean": clean}, sample, judge, (20, 20), (1, 0.5))
    names = [*dict.fromkeys(row["resampler"] for row in rows)]
    assert len(names) == 13 + 12 and "none x0.5" not in names
    for name, pictures in zip(names, judged_pictures.values(), strict=True):
        side = 40 if name == "none" else 10 if name.endswith(" x0.5") else 20
        assert pictures.shape[2:] == (side, side)
    small = resize(clean, (10, 10), "cv2_cubic", eight_bit=True)
    torch.testing.assert_close(judged_pictures[names.index("OpenCV cubic x0.5")], small, rtol=0, atol=1.01 / 255)


@pytest.mark.parametrize("ratio", [0.95, 0.97, 1.03, 1.05])
@pytest.mark.parametrize(("whole", "side"), [((300, 400), 96), ((333, 500), 24), ((500, 281), 32), ((120, 120), 60)])
def test_at_a_ratio_a_resampler_makes_the_size_that_the_shorter_side_gives(whole, side, ratio):
    # The stage that an attack is made through, or torchvision's resize, sees the same pixels.
    picture = torch.rand(1, 3, *whole, generator=torch.Generator().manual_seed(0)).mul(255).round() / 255
    (resample,) = at_ratios({"torch bilinear": resamplers()[0]["torch bilinear"]}, [ratio]).values()
    picture_out = resample(to_bytes(picture[0]), target_size(whole, side))
    stage = Downscale(round(ratio * side), "torch_bilinear", eight_bit=True)
    view = stage(picture, torch.zeros(1, 0))
    assert view.shape[2:] == picture_out.shape[:2]
    torch.testing.assert_close(torch.from_numpy(picture_out).permute(2, 0, 1) / 255, view[0], rtol=0, atol=1.01 / 255)


def test_at_a_ratio_the_longer_side_is_rounded_as_at_the_exact_size():
    assert size_at(0.95, (3000, 4000), (96, 128)) == (91, 121)  # 121.33: rounded down or to the nearest
    assert size_at(0.95, (300, 400), (224, 224)) == (213, 213)  # an encoder that squashes
    assert size_at(0.001, (300, 400), (30, 40)) == (1, 1)


def net(**spec):
    return with_preprocess(small(), Preprocess(mean=(0.5,) * 3, std=(0.5,) * 3, kernel="pil_bilinear", **spec))


@pytest.mark.parametrize("fit", ["squash", "cover", "contain"])
@pytest.mark.parametrize("rounding", ["down", "nearest"])
@pytest.mark.parametrize("shape", [(480, 641), (333, 97), (40, 40)])
def test_a_resampler_replaces_the_resize_of_the_encoder(fit, rounding, shape):
    encoder = net(size=24, fit=fit, rounding=rounding)
    size = deployed_size(encoder, shape)
    assert size == encoder.preprocess.resized(*shape) == encoder.preprocess.resized(*size)
    assert deployed_size(Defended(encoder, [Jpeg(75)]), shape) == size


def test_without_a_resize_the_size_is_half():
    assert deployed_size(ENCODER, (96, 96)) == (48, 48)  # the picture already has the input size
    assert deployed_size(net(size=None), (30, 61)) == (15, 30)
    assert deployed_size(Phash(), (40, 20)) == (20, 10)
