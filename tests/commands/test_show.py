"""The contact sheet."""

import pytest
import torch
from PIL import Image

from attacks.commands import main
from attacks.commands import show as script
from transforms import Affine, Brightness, Compose, Perspective, Sobol
from transforms.camera import Quantise


def test_labels_hold_the_values_of_varying_coordinates_of_one_stage_or_several():
    stage = Affine(degrees=30, translate=(0.1, 0.1), scale=(0.5, 1.5))
    u = torch.tensor([[0.25, 0.5, 0.5, 0.5, 0.5], [0.75, 0.125, 0.5, 0.5, 0.5]])
    names, values = script.coordinate_labels(Compose([stage]), u)
    assert names == ["angle (deg)", "scale (x)"]
    assert values == [["-15", "1"], ["15", "0.625"]]
    pipeline = Compose([Perspective(0.2), Brightness(0.2), Quantise()])
    u = Sobol()(2, pipeline.dims, seed=0)
    names, values = script.coordinate_labels(pipeline, u)
    assert names == list(pipeline.names) and len(values[0]) == 9
    assert [float(row[-1]) for row in values] == pytest.approx(pipeline.values(u)[:, -1].tolist(), rel=5e-3)


@pytest.mark.parametrize(
    "source",
    [["--transforms", "camera"], ["--stage", "{affine: {degrees: 30}, jpeg: {quality: 10}}", "--sampler", "uniform"]],
    ids=["preset", "stage"],
)
def test_the_command_writes_a_sheet(source, tmp_path, capsys):
    out = tmp_path / "new" / "sheet.png"
    assert main(["show", *source, "--out", str(out), "--side", "64", "--draws", "3", "--columns", "2"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    with Image.open(out) as picture:
        assert picture.format == "PNG" and picture.width > 3 * 64 and picture.height > 2 * 64
    first = out.read_bytes()
    main(["show", *source, "--out", str(out), "--side", "64", "--draws", "3", "--columns", "2"])
    assert out.read_bytes() == first
