"""The contact sheet and the page of pictures: every stage is there, with a visible effect."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

from attacks.commands import main
from attacks.commands import show as script
from attacks.runtime.files import sha256
from scripts import draw_stages
from transforms import Affine, Brightness, Compose, Perspective, Quantise, Sobol
from transforms.registry import STAGES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "transforms.md").read_text()
PICTURES = ROOT / "docs" / "transforms"
SHOWN = yaml.safe_load((PICTURES / "stages.yaml").read_text())


def test_every_stage_has_an_example_and_a_section_in_the_order_of_the_registry():
    assert list(SHOWN) == list(STAGES)
    assert re.findall(r"^#### (.*)$", PAGE, re.MULTILINE) == list(STAGES)


def test_the_section_of_a_stage_names_its_class_its_arguments_and_its_picture():
    for name, stage in STAGES.items():
        section = PAGE.split(f"\n#### {name}\n")[1].split("\n#")[0]
        for text in (f"`{stage.__name__}`", f"![{name}](transforms/{name}.jpg)", *(f"`{key}" for key in SHOWN[name])):
            assert text in section, (name, text)


def test_every_preset_and_every_resizer_is_in_the_page():
    from transforms.resizing.resize import NAMES

    presets = {path.stem for path in (ROOT / "configs" / "transforms").glob("*.yaml")}
    assert {name for name in [*presets, *NAMES] if f"`{name}`" not in PAGE} == set()


def test_each_stage_has_one_small_picture():
    files = sorted(PICTURES.glob("*.jpg"))
    assert [path.stem for path in files] == sorted(STAGES)
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) <= 40_000 and sum(sizes) <= 1_000_000
    assert len({sha256(path) for path in files}) == len(files)


def test_every_picture_shows_a_change():
    from attacks.experiment.build.pipeline import stages
    from transforms import Grid, resize

    y, x = torch.meshgrid(torch.linspace(0, 1, 96), torch.linspace(0, 1, 96), indexing="ij")
    image = torch.stack([x, y, 0.5 + 0.5 * (40 * x * y).sin()])[None]
    for name, stage in zip(SHOWN, stages(SHOWN, "stages"), strict=True):
        u = (Grid() if stage.dims == 1 else Sobol())(5 if stage.dims else 1, stage.dims, seed=0)
        views = Compose([stage])(image, u)
        change = resize(views, 96, "pil_bicubic") - image
        assert change.abs().mean(dim=(1, 2, 3)).max() > 0.01, name


def test_labels_hold_the_values_of_varying_coordinates():
    stage = Affine(degrees=30, translate=(0.1, 0.1), scale=(0.5, 1.5))
    u = torch.tensor([[0.25, 0.5, 0.5, 0.5, 0.5], [0.75, 0.125, 0.5, 0.5, 0.5]])
    names, values = script.labels(Compose([stage]), u)
    assert names == ["angle (deg)", "scale (x)"]
    assert values == [["-15", "1"], ["15", "0.625"]]


def test_labels_of_several_stages_name_them_and_count_the_omitted_ones():
    pipeline = Compose([Perspective(0.2), Brightness(0.2), Quantise()])
    u = Sobol()(2, pipeline.dims, seed=0)
    names, values = script.labels(pipeline, u)
    assert names == list(pipeline.names) and len(values[0]) == 9
    assert [float(row[-1]) for row in values] == pytest.approx(pipeline.values(u)[:, -1].tolist(), rel=5e-3)
    names, values = script.labels(pipeline, u, most=4)
    assert names == [*pipeline.names[:3], "and 6 more"] and [len(row) for row in values] == [4, 4]


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


def test_the_script_draws_a_page_of_all_stages(tmp_path, monkeypatch):
    few = {name: SHOWN[name] for name in ("flip", "quantise", "thin_plate")}
    (tmp_path / "stages.yaml").write_text(yaml.safe_dump(few, sort_keys=False))
    monkeypatch.setattr(draw_stages, "STAGES", tmp_path / "stages.yaml")
    draw_stages.draw(tmp_path / "made")
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "flip.jpg",
        "quantise.jpg",
        "thin_plate.jpg",
    ]
    for path in (tmp_path / "made").iterdir():
        with Image.open(path) as mine, Image.open(PICTURES / path.name) as shipped:
            assert mine.size == shipped.size
