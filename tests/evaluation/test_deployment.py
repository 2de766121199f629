"""Files through real codecs and real resamplers: every cell against the plain computation of it."""

import sys
from dataclasses import dataclass
from io import BytesIO

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, features

from attacks.data.gallery import tiles
from attacks.encoders import Defended, Phash, Preprocess, untrained, with_preprocess
from attacks.eot.bank import Bank
from attacks.evaluation.deployment import deployed_size, deployment
from attacks.evaluation.intervals import interval, rate
from attacks.evaluation.scores import embed, evaluate
from attacks.runtime.tables import read_rows, write_rows
from tests.helpers.small import small
from transforms import Compose, Jpeg

ENCODER = untrained().eval().requires_grad_(False)
SIZE = (24, 30)
ROWS = torch.tensor([4, 0, 2])
NAMES = ("a", "b", "c")


@dataclass
class Plain:
    """A judge without anything around it; pictures are rows of the gallery."""

    clean: torch.Tensor

    def __call__(self, shown, rows, bank):
        return evaluate(shown, self.clean[rows], self.clean, encoder=ENCODER, bank=bank)

    def success(self, scores, rows):
        return scores.nearest != rows[:, None]


@pytest.fixture(scope="module")
def found():
    """Three pictures of five, clean and hurt, through the matrix; and the judge."""
    clean = tiles(40).spread(5).images
    judge = Plain(embed(clean, ENCODER, torch.device("cpu")))
    noise = torch.randint(-25, 26, clean.shape, generator=torch.Generator().manual_seed(0)) / 255
    hurt = ((clean + noise).clamp(0, 1) * 255).round() / 255
    shown = {"clean": clean[ROWS], "noise": hurt[ROWS]}
    return shown, judge, deployment(shown, ROWS, judge, SIZE, names=NAMES)


def cell(found, codec, resampler):
    (one,) = [c for c in found.cells if (c.codec, c.resampler) == (codec, resampler)]
    return one


def test_every_cell_is_there_once(found):
    pairs = [(one.codec, one.resampler) for one in found[2].cells]
    assert len(set(pairs)) == len(pairs) == 5 * 9
    assert found[2].missing == ()


def test_a_png_that_nobody_resizes_is_judged_as_it_is(found):
    shown, judge, result = found
    for arm, images in shown.items():
        scores = judge(images, ROWS, Bank(Compose([]), torch.zeros(1, 0)))
        one = cell(result, "PNG", "none")
        assert torch.equal(one.arms[arm].cosine, scores.cosine)
        assert torch.equal(one.arms[arm].success, judge.success(scores, ROWS))


def straight(pixels, codec, resampler):
    """The cell's picture, by the calls that its names say."""
    kind, _, quality = codec.partition(" ")
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind.upper(), **({"quality": int(quality)} if quality else {}))
    picture = Image.open(file).convert("RGB")
    library, *words = resampler.split()
    if library == "Pillow":
        return np.array(picture.resize(SIZE[::-1], getattr(Image.Resampling, words[0].upper())))
    if library == "OpenCV":
        return cv2.resize(np.asarray(picture), SIZE[::-1], interpolation=getattr(cv2, f"INTER_{words[0].upper()}"))
    if library == "torch":
        levels = torch.from_numpy(np.array(picture).transpose(2, 0, 1)[None].copy())
        return (
            F.interpolate(levels, SIZE, mode=words[1], antialias=True, align_corners=False)[0]
            .permute(1, 2, 0)
            .numpy()
        )
    return np.array(picture)


def test_every_cell_is_what_its_names_say(found):
    shown, judge, result = found
    for one in result.cells:
        for arm, images in shown.items():
            pixels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
            pictures = np.stack([straight(picture, one.codec, one.resampler) for picture in pixels])
            seen = torch.from_numpy(pictures.astype(np.float32) / np.float32(255)).permute(0, 3, 1, 2).contiguous()
            with torch.no_grad():
                cosine = F.cosine_similarity(ENCODER(seen)[:, None], judge.clean[None], dim=2)
            own = cosine.gather(1, ROWS[:, None])
            torch.testing.assert_close(one.arms[arm].cosine, own, rtol=0, atol=1e-5)
            assert torch.equal(one.arms[arm].success, cosine.argmax(1, keepdim=True) != ROWS[:, None])


def test_webp_is_pillows_default(found):
    pixels = (found[0]["clean"][0] * 255).round().byte().permute(1, 2, 0).numpy()
    files = [BytesIO(), BytesIO()]
    Image.fromarray(pixels).save(files[0], "WEBP")
    Image.fromarray(pixels).save(files[1], "WEBP", quality=80)
    assert files[0].getvalue() == files[1].getvalue()


def test_a_worse_file_is_another_picture(found):
    for resampler in ("none", "Pillow bicubic"):
        cosines = [cell(found[2], codec, resampler).arms["clean"].cosine for codec in ("PNG", "JPEG 95", "JPEG 50")]
        assert len({tuple(c.flatten().tolist()) for c in cosines}) == 3
        assert cosines[2].mean() < cosines[1].mean() <= cosines[0].mean() + 1e-6


def test_cells_can_be_computed_from_their_rows(found, tmp_path):
    write_rows(tmp_path / "deployment.csv", found[2].rows())
    rows, content = read_rows(tmp_path / "deployment.csv"), found[2].to_dict()
    assert len(rows) == 45 * 2 * 3
    assert (content["pictures"], content["size"], content["missing"]) == (3, [24, 30], [])
    for one in content["cells"]:
        for arm, measures in one["arms"].items():
            mine = [r for r in rows if (r["codec"], r["resampler"]) == (one["codec"], one["resampler"])]
            mine = [r for r in mine if r["arm"] == arm]
            assert [r["picture"] for r in mine] == list(NAMES)
            cosines = torch.tensor([[float(r["cosine"])] for r in mine])
            hits = torch.tensor([[bool(int(r["success"]))] for r in mine])
            assert measures == {"success": rate(hits)._asdict(), "cosine": interval(cosines)._asdict()}


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.setattr(features, "check", lambda name: name != "webp")
    clean = tiles(40).spread(2).images
    judge = Plain(embed(clean, ENCODER, torch.device("cpu")))
    result = deployment({"clean": clean}, torch.arange(2), judge, SIZE, names=("a", "b"))
    assert len(result.cells) == 4 * 6
    assert not any("OpenCV" in one.resampler or "WebP" in one.codec for one in result.cells)
    webp, opencv = result.missing
    assert webp.startswith("WebP 80: ") and opencv.startswith("OpenCV area, OpenCV linear, OpenCV cubic: ")


def net(**spec):
    return with_preprocess(small(), Preprocess(mean=(0.5,) * 3, std=(0.5,) * 3, kernel="pil_bilinear", **spec))


@pytest.mark.parametrize("fit", ["squash", "cover", "contain"])
@pytest.mark.parametrize("rounding", ["down", "nearest"])
@pytest.mark.parametrize("shape", [(480, 641), (333, 97), (40, 40)])
def test_a_resampler_takes_the_place_of_the_encoders_resize(fit, rounding, shape):
    encoder = net(size=24, fit=fit, rounding=rounding)
    size = deployed_size(encoder, shape)
    assert size == encoder.preprocess.resized(*shape) == encoder.preprocess.resized(*size)
    assert deployed_size(Defended(encoder, [Jpeg(75)]), shape) == size


def test_where_there_is_no_resize_the_size_is_half():
    assert deployed_size(ENCODER, (96, 96)) == (48, 48)  # it has its size already
    assert deployed_size(net(size=None), (30, 61)) == (15, 30)
    assert deployed_size(Phash(), (40, 20)) == (20, 10)
