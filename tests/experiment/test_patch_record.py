"""The record of a patch in a report agrees with the patch in the pictures."""

import dataclasses
import math

import pytest
import torch

from attacks.data.gallery import Pictures
from attacks.perturbations.patch.card import card
from attacks.perturbations.patch.card_raster import surround
from attacks.perturbations.patch.placement import Placements
from attacks.report.answer import answer
from attacks.report.facts import patch_rows
from attacks.report.warnings import warnings
from attacks.schema.groups import CHOICES, PatchConfig, PrinterConfig
from attacks.schema.validate import validate
from attacks.study.perturbation import facts, patch, patch_id, physical_patch
from attacks.study.printer import lay_on_sheet
from attacks.study.registry import make_part
from tests.helpers import report_pages
from tests.schema.test_configs import composed
from transforms import Compose

IMAGES = torch.zeros(2, 3, 40, 60)
QUAD = [[0.2, 0.1], [0.6, 0.1], [0.6, 0.6], [0.2, 0.6]]
PLAIN = PrinterConfig(name="none")


def node(**keys):
    return PatchConfig(**({"size": [16, 24], "quad": QUAD, "start_from": "grey", "shape": "rectangle"} | keys))


def record(places=None, printer=PLAIN, target=None, **keys):
    perturbation, pictures = patch(node(**keys), IMAGES, "vp-01234567", places), Pictures(("a", "b"), IMAGES)
    physical = physical_patch(node(**keys), printer, perturbation, pictures, "vp-01234567", target)
    return facts(node(**keys), physical, perturbation)


@pytest.mark.parametrize(
    ("shape", "share"),
    [("rectangle", 1), ("ellipse", math.pi / 4), ("circle", math.pi / 6), ([[0, 0], [1, 0], [0, 1]], 0.5)],
)
def test_the_area_is_that_of_the_shape_in_its_quad(shape, share):
    area = record(shape=shape)["area"]
    assert list(area.values()) == pytest.approx([0.4 * 0.5 * share] * 3, abs=2e-3)


def test_the_area_of_a_picture_has_no_overlap_twice_counted():
    quads = torch.tensor([[QUAD, QUAD], [QUAD, [[x / 2, y / 2] for x, y in QUAD]]], dtype=torch.float64)
    present = torch.tensor([[1.0, 1.0], [0.0, 1.0]])[..., None, None]
    area = record(Placements(quads, present))["area"]
    assert list(area.values()) == pytest.approx([0.125, 0.05, 0.2], abs=1e-3)


def test_the_record_of_a_patch_anywhere_has_the_range_of_its_sizes():
    result = record(place={"scale": [0.2, 0.4], "degrees": 20})
    # Of the shorter side, 40 pixels; the texture is 1.5 times as wide as high.
    sides = [0.2 * 40, 0.3 * 40, 0.4 * 40]
    low, mean, high = (1.5 * side**2 / 2400 for side in sides)
    assert result["area"] == pytest.approx({"mean": mean, "low": low, "high": high}, abs=1e-3)
    ranges = {"scale": [0.2, 0.4], "degrees": [-20, 20], "x": [0, 1], "y": [0, 1]}
    assert result["anywhere"] == {key: pytest.approx(ends) for key, ends in ranges.items()}
    assert "scale 0.2 to 0.4, degrees -20 to 20, x 0 to 1" in dict(patch_rows(result))["lies"]


def test_a_card_covers_more_than_its_patch():
    result = record(card=True, width_mm=60.0)
    assert result["sheet_area"]["mean"] > 1.3 * result["area"]["mean"] == pytest.approx(1.3 * 0.2, abs=2e-3)
    output = dict(patch_rows(result))
    assert "20.0% of the picture; with the card" in output["covers"]
    assert "60 mm wide; seen with its card" in output["printed"]


def test_the_rows_name_printer_colours_and_target():
    printer = PrinterConfig(name="generic", colour="generic", stages={"exposure": {"stops": 0.3}})
    output = dict(patch_rows(record(printer=printer, target="chelsea-0-0", gamut=[0.1, 0.9], grey=True)))
    assert output["printed"] == "printer=generic, colours generic (relative); exposure"
    assert output["its colours"] == "gamut [0.1, 0.9], grey only" and output["target"] == "chelsea-0-0"
    assert "assumed no printer" in dict(patch_rows(record()))["printed"] and "target" not in dict(
        patch_rows(record())
    )


def test_a_patch_gives_no_warning_about_the_unused_budget():
    content = report_pages.content(arms=report_pages.arm_values(0.9), comparisons=[])
    content["arms"]["eot"]["budget_used"] = 0.2
    assert "its files use 20% of the budget" in warnings(content)[0]
    content["threat"]["patch"] = record()
    assert "budget" not in warnings(content)[0]
    assert answer(content).reason.startswith("With the patch, 84 % (80-88 %) of unseen camera views are taken for")


def test_a_patch_that_lies_anywhere_keeps_its_aspect():
    quad = patch(node(place={"scale": [0.2, 0.4]}), IMAGES, "vp-01234567").placements.quads[0, 0] * torch.tensor(
        [60, 40]
    )
    wide, high = (quad[1] - quad[0]).norm(), (quad[2] - quad[1]).norm()
    assert (float(wide), float(high)) == pytest.approx((18, 12))


def test_the_surround_in_the_attack_is_the_printed_card_of_the_arm():
    plane = patch(node(card=True, width_mm=60.0), IMAGES, "vp-01234567")
    surroundings = []
    for arm in ("eot", "noise", "no_eot"):
        picture, top, left, times = surround(card(60, 40, f"vp-01234567  {arm}"), (16, 24))
        frame = plane.for_arm(arm).surround
        assert (frame.top, frame.left, frame.times) == (top, left, times)
        assert torch.equal((frame.picture[0] * 255).round().byte(), torch.from_numpy(picture).permute(2, 0, 1))
        surroundings.append(frame.picture)
    assert torch.equal(plane.surround.picture, surroundings[0]) and not torch.equal(surroundings[0], surroundings[1])


@pytest.mark.slow
def test_the_id_depends_on_the_patch_alone_and_no_other_key():
    run = validate(composed("config=patch"))
    for overrides, is_equal in (
        (["engine.device=cpu", "tracker=none", "evaluate.views=7"], True),
        (["seed=1"], False),
        (["attack.gradients=3"], False),
        (["perturbation.size=[8,8]"], False),
    ):
        assert (patch_id(validate(composed("config=patch", *overrides))) == patch_id(run)) is is_equal


BAD = [
    ({"quad": []}, "`perturbation.quad` must be four corners"),
    ({"quad": [[]]}, "`perturbation.quad` must be four corners"),
    ({"quad": QUAD[:3]}, "`perturbation.quad` must be four corners"),
    ({"quad": [*QUAD[:3], [0.2]]}, "`perturbation.quad` must be four corners"),
    ({"quad": [QUAD, QUAD[:3]]}, "`perturbation.quad` must be four corners"),
    ({"quad": [QUAD[0], QUAD[2], QUAD[1], QUAD[3]]}, r"`perturbation.quad` folds over.*got \[\[0.2, 0.1\]"),
    ({"quad": [[x + 1, y] for x, y in QUAD]}, "`perturbation.quad` must overlap the picture"),
    ({"shape": [["a", "b"], [1, 1], [0, 1]]}, "`perturbation.shape` must be a word"),
    ({"shape": [1, 2, 3]}, "`perturbation.shape` must be a word"),
    ({"shape": [[0, 0], [1, 1], [1, 0], [0, 1]]}, "`perturbation.shape` is flat, or crosses itself"),
    ({"width_mm": 0.0}, "`perturbation.width_mm` must lie in 1..10000 mm; got 0"),
    ({"width_mm": 10001.0, "card": True}, "`perturbation.width_mm` must lie in 1..10000 mm"),
]


@pytest.mark.parametrize(("keys", "message"), BAD)
def test_an_error_for_a_wrong_value_names_its_key(keys, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        patch(node(**keys), IMAGES, "vp-01234567")


def test_errors_of_other_parts_name_their_keys():
    with pytest.raises(ValueError, match=r"^`penalty.weight` must be a positive number; got -1.0"):
        make_part("penalty", CHOICES["penalty"]["nps"](weight=-1.0))
    with pytest.raises(ValueError, match=r"^`printer.colour` is of what is printed"):
        lay_on_sheet(Compose(), dataclasses.replace(PLAIN, colour="generic"), None)
