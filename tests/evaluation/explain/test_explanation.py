"""The explanations as a whole: what they say, what they cost, and encoders that make some of it impossible."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attacks import bank, interval
from attacks.data.gallery import tiles
from attacks.encoders import Defended, Phash, Stochastic, untrained
from attacks.encoders.randomness import randomised
from attacks.evaluation.explain import explain
from attacks.evaluation.explain.deletion import STEPS
from attacks.evaluation.explain.gradients import VIEWS
from attacks.evaluation.explain.spectrum import shares
from attacks.report.explanations import draw_explanations
from attacks.runtime.tables import read_rows, write_rows
from transforms import Affine, Compose, Jpeg, SensorNoise

CLEAN = tiles(32).spread(3).images
STRIPES = 0.05 * torch.tensor([1.0, -1.0]).repeat(16).expand_as(CLEAN)
ATTACKED = {"no_eot": (CLEAN + STRIPES).clamp(0, 1), "eot": (CLEAN + STRIPES.mT).clamp(0, 1)}
NAMES = ("a", "b", "c")
POCKET = untrained().eval().requires_grad_(False)


def views_for(encoder):
    return bank(randomised(Compose([Affine(degrees=10)]), encoder), 16, seed=0, purpose="test")


def explained(encoder, **given):
    with torch.no_grad():
        anchors = encoder(CLEAN)
    return explain(encoder, CLEAN, ATTACKED, anchors, views_for(encoder), names=NAMES, **given)


@pytest.fixture(scope="module")
def found():
    return explained(POCKET)


def plain(found):
    """For metrics.json, without what time it took."""
    content = found.to_dict()
    content["cost"].pop("seconds")
    return json.loads(json.dumps(content, allow_nan=False))


def test_same_seed_same_numbers_bit_for_bit(found):
    assert plain(explained(POCKET)) == plain(found)


def test_another_seed_changes_the_random_order_alone(found):
    other = plain(explained(POCKET, seed=1))
    assert other["orders"]["random"] != plain(found)["orders"]["random"]
    assert other["orders"]["gradient"] == plain(found)["orders"]["gradient"]  # (a Grad-CAM has ties, at 0)
    for key in ("likeness", "coverage", "effective_coverage", "spectrum"):
        assert other[key] == plain(found)[key]


@pytest.mark.slow
def test_what_shares_a_pass_shows_in_the_last_digits_only(found):
    small = explained(POCKET, chunk=2)
    for arm, maps in found.arms.items():
        for order in found.orders:
            torch.testing.assert_close(small.arms[arm].curves[order], maps.curves[order], rtol=0, atol=1e-4)
    torch.testing.assert_close(small.reach.coverage, found.reach.coverage)


def test_a_picture_is_explained_by_its_own_maps(found):
    with torch.no_grad():
        anchors = POCKET(CLEAN[1:2])
    some = {arm: pictures[1:2] for arm, pictures in ATTACKED.items()}
    alone = explain(POCKET, CLEAN[1:2], some, anchors, views_for(POCKET), names=("b",))
    for arm, maps in alone.arms.items():
        theirs = found.arms[arm].curves["gradient"][1:2]
        torch.testing.assert_close(maps.curves["gradient"], theirs, rtol=0, atol=1e-5)


def test_the_tables_can_be_computed_from_the_rows(found, tmp_path):
    write_rows(tmp_path / "explanations.csv", found.rows())
    rows, content = read_rows(tmp_path / "explanations.csv"), plain(found)
    assert len(rows) == 3 * 3 * 3 and content["order"] == "gradcam"
    for order, measures in content["orders"].items():
        for measure, arms in measures.items():
            for arm, expected in arms.items():
                mine = [row for row in rows if (row["arm"], row["order"]) == (arm, order)]
                assert [row["picture"] for row in mine] == list(NAMES)
                values = torch.tensor([[float(row[measure])] for row in mine], dtype=torch.float64)
                assert expected == interval(values)._asdict()
                control = [row for row in rows if (row["arm"], row["order"]) == (arm, "random")]
                if order != "random":
                    others = torch.tensor([[float(row[measure])] for row in control], dtype=torch.float64)
                    assert content["beyond_random"][order][measure][arm] == interval(values - others)._asdict()
    for measure in ("coverage", "view_coverage", "effective_coverage"):
        assert content[measure] == pytest.approx(np.mean([float(row[measure]) for row in rows[:3]]))
    assert content["dead"] == pytest.approx(1 - content["coverage"])
    assert content["deletion"] == content["orders"]["gradcam"]["deletion"]


def test_the_spectrum_can_be_computed_from_its_rows(found):
    rows, spectrum = found.spectrum_rows(), found.to_dict()["spectrum"]
    for arm, expected in spectrum["arms"].items():
        mine = [row for row in rows if row["arm"] == arm]
        power = torch.tensor([[r["power"] for r in mine if r["picture"] == name] for name in NAMES])
        assert expected == pytest.approx(shares(power.double()))
        assert sum(expected) == pytest.approx(1.0)
        assert expected[-1] > 0.9  # stripes of one pixel


def test_likeness_is_the_cosine_and_each_curve_begins_or_ends_there(found):
    with torch.no_grad():
        for arm, pictures in {"clean": CLEAN, **ATTACKED}.items():
            cosine = torch.cosine_similarity(POCKET(pictures), POCKET(CLEAN))
            torch.testing.assert_close(found.arms[arm].likeness, cosine, rtol=0, atol=1e-5)
            for curves in found.arms[arm].curves.values():
                torch.testing.assert_close(curves[:, 0, 0], curves[:, 1, -1])


def test_every_pass_is_counted():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.passes = untrained().eval(), 0

        def forward(self, images):
            self.passes += len(images)
            return self.inner(images)

    encoder = Counting()
    result = explained(encoder)
    assert result.forward == encoder.passes - len(CLEAN)  # the anchors are not its own
    by_arm = 3 * (1 + 2 + 3 * 2 * (STEPS - 1))  # look, ends, orders
    assert result.forward == 4 + 3 * by_arm + 3 * VIEWS
    assert result.backward == 2 + 3 * 3 + 3 * VIEWS
    assert result.seconds > 0


def test_the_sheet_is_a_picture(found, tmp_path):
    draw_explanations(tmp_path / "explanations.png", found, 1)
    with Image.open(tmp_path / "explanations.png") as sheet:
        assert sheet.size[0] > 1000 and sheet.size[1] > 700
        assert len(np.unique(np.asarray(sheet.convert("L")))) > 50


@pytest.mark.parametrize(
    "encoder",
    [Phash(), Defended(POCKET, [Jpeg((50, 90))]), Stochastic(Defended(POCKET, [SensorNoise((0.01, 0.1))]))],
    ids=["hash", "defended", "stochastic"],
)
def test_encoders_of_other_kinds(encoder):
    result = explained(encoder)
    assert all(bool(curve.isfinite().all()) for curve in result.arms["eot"].curves.values())
    assert result.layer == (None if isinstance(encoder, Phash) else "stages")
    assert [text.partition(":")[0] for text in result.missing] == (["Grad-CAM"] if result.layer is None else [])
    assert result.orders == (("gradient", "random") if result.layer is None else ("gradcam", "gradient", "random"))
    assert set(plain(result)["deletion"]) == {"clean", "no_eot", "eot"}


def test_without_a_gradient_only_chance_is_left(tmp_path):
    class Cut(nn.Module):
        def forward(self, images):
            return images.detach().mean((2, 3))

    result = explained(Cut())
    assert result.orders == ("random",) and len(result.missing) == 2
    content = plain(result)
    assert (content["coverage"], content["dead"], content["beyond_random"]) == (None, None, {})
    assert result.rows()[0]["coverage"] is None
    draw_explanations(tmp_path / "explanations.png", result)


def test_one_picture_and_no_perturbation(tmp_path):
    encoder = POCKET
    with torch.no_grad():
        anchors = encoder(CLEAN[:1])
    result = explain(encoder, CLEAN[:1], {"eot": CLEAN[:1]}, anchors, views_for(encoder), names=("a",))
    assert plain(result)["spectrum"]["arms"] == {"eot": None}
    draw_explanations(tmp_path / "explanations.png", result)
