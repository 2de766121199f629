"""From `printer` in a configuration to the stages of a printed sheet."""

import pytest
import torch

from attacks.perturbations.patch.inks import Inks, generic, neugebauer
from attacks.schema import validate as schema
from attacks.schema.groups import CHOICES, PrinterConfig
from attacks.study.make import make
from attacks.study.printer import PAPER, PRINT, fixed, sheet_views
from tests.schema.test_configs import composed
from transforms import Affine, Compose
from transforms.colour import Exposure
from transforms.colour.lut import ColourMap, apply_lut
from transforms.colour.spaces import to_srgb
from transforms.compose import Geometry
from transforms.geometry import Placement
from transforms.registry import STAGES
from transforms.wrappers import OnLayers


def printer_stages(node):
    return make(sheet_views, node, "printer")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES["printer"])
def test_a_printer_prints_any_texture_with_a_gradient(name):
    colour = ["printer.colour=generic"] if name == "measured" else []
    run = schema.validate(composed("config=patch", f"printer={name}", *colour))
    sheet = Compose(printer_stages(run.printer))
    texture = torch.rand(2, 3, 24, 30).requires_grad_()
    output = sheet(texture, torch.rand(4, sheet.dims))
    assert output.shape[1:] == texture.shape[1:] and output.min() >= 0 and output.max() <= 1
    (output * torch.randn_like(output)).sum().backward()
    assert texture.grad.isfinite().all() and texture.grad.flatten(1).norm(dim=1).min() > 1e-3


def test_printer_stages_have_the_order_colours_light_paper():
    stages = {"exposure": {"stops": 1}, "cylinder": {"arc": 30}}
    first, light, bend = printer_stages(PrinterConfig("x", "generic", "relative", stages))
    assert isinstance(first, ColourMap) and isinstance(light, Exposure) and isinstance(bend, Geometry)
    assert repr(first) == "ColourMap(name='generic')" and printer_stages(PrinterConfig("none")) == []
    texture = torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(first(texture, torch.rand(1, 0)), apply_lut(texture, generic()))


def test_a_printer_accepts_only_stages_of_the_sheet():
    for name, stage in STAGES.items():
        source = PrinterConfig("x", stages={name: {"stages": {"hue": {}}} if name in ("sometimes", "one_of") else {}})
        if name in PRINT or name in PAPER:
            (result,) = printer_stages(source)
            assert type(result) is stage
            assert isinstance(result, Geometry) == (name in PAPER)
        else:
            with pytest.raises(ValueError, match=rf"printer\.stages\.{name}`"):
                printer_stages(source)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"jpeg": {"quality": 70}}, r"`printer\.stages\.jpeg` is of a camera, not of a sheet"),
        ({"cylinder": {}, "exposure2": {}}, r"`printer\.stages\.exposure2` must stand before cylinder"),
        ({"jpg": {}}, r"`printer\.stages\.jpg` is unknown"),
        ({"exposure": {"stop": 1}}, r"unknown key `printer\.stages\.exposure\.stop`"),
    ],
)
def test_wrong_stages_are_named(stages, message):
    with pytest.raises(ValueError, match=message):
        printer_stages(PrinterConfig("x", stages=stages))


def test_an_attack_without_views_has_the_printers_colours_and_nothing_random():
    colours = ColourMap(generic())
    camera = (Affine(degrees=20),)
    (left,) = fixed(Compose([OnLayers([colours, Exposure(0.3)], Placement()), *camera])).stages
    assert left.stages == (colours,) and left.place is None
    for pipeline in (Compose([OnLayers([Exposure(0.3)], Placement()), *camera]), Compose(camera), Compose()):
        assert fixed(pipeline).stages == ()


double = torch.float64


def test_a_member_of_the_family_is_the_halftone_of_its_overprints():
    inks = Inks(gamma=(1, 1))
    colours, u = torch.rand(2, 3, 5, 7, dtype=double) * 0.9 + 0.1, torch.rand(2, 6, dtype=double)
    outputs, overprints = inks(colours, u), to_srgb(inks.overprints(u))
    for single, original, output in zip(colours, overprints, outputs, strict=True):
        expected = neugebauer(single.flatten(1).T, original).T.reshape(3, 5, 7).clamp(0, 1)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


def test_gradients_are_those_of_finite_differences():
    colours = (torch.rand(2, 3, 2, 3, dtype=double) * 0.9 + 0.05).requires_grad_()
    u = torch.rand(2, 6, dtype=double).requires_grad_()
    assert torch.autograd.gradcheck(Inks(), (colours, u))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_gradient_lives_at_the_ends_of_the_range(value):
    colours = torch.full((64, 3, 1, 1), value, requires_grad=True)
    Inks()(colours, torch.rand(64, 6)).sum().backward()
    assert colours.grad.isfinite().all() and colours.grad.min() > 1e-3 and colours.grad.max() < 100
