"""A folder of photographs of a run's print, scored; and every fault of such a folder."""

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from hydra.core.config_store import ConfigStore
from PIL import Image

from attacks.commands import main
from attacks.data.images import load_image, save_image, to_bytes
from attacks.encoders.description import identity
from attacks.experiment.directory import refuse_program
from attacks.perturbations.patch.card import card
from attacks.perturbations.patch.card_raster import card_picture
from attacks.physical import photo_report, score, scoring
from attacks.physical.photo_measure import CardDetection
from attacks.physical.simulation.camera import print_raster
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Shot
from attacks.physical.views import photo_view
from attacks.runtime.files import sha256, write_json
from attacks.schema.presets import read_preset
from attacks.schema.validate import validate
from attacks.study.assembly import build
from tests.helpers.photographs import card_light, place_card, render_photo, stored_scores
from tests.helpers.prints import physical
from tests.schema.test_configs import composed

OVERRIDES = ["config=patch", "data.photos=[astronaut]", "data.count=2", "data.size=64", "perturbation.size=[16,16]"]
ID, DPI = "vp-01234567", 150
CARD = card(80, 80, f"{ID}  eot")
CORNERS = ((0.05, 0.0), (-0.04, 0.06), (0.0, -0.05), (0.03, 0.02))
QUAD = [[0.25, 0.25], [0.75, 0.25], [0.75, 0.75], [0.25, 0.75]]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The files of a run and of its print that these tests read."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "pictures" / "clean").mkdir(parents=True)
    (folder / "print").mkdir()
    config = validate(composed(*OVERRIDES))
    parts = build(config)
    names = [Path(name).stem for name in parts.queries.names]
    for name, image in zip(names, parts.queries.images, strict=True):
        save_image(folder / "pictures" / "clean" / f"{name}.png", image)
    save_image(folder / "patch.png", torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)))
    description = identity(config.encoder, parts.encoder)
    values = {"started": "2026-01-01T00:00:00", "config": dataclasses.asdict(config), "encoder": description}
    write_json(folder / "manifest.json", values)
    stored_scores(folder, torch.full((2, 4), 0.5), torch.tensor([[True, False] * 2] * 2))
    patch = physical(tuple(names), ((QUAD,), (QUAD,)), (64, 64), id=ID)
    write_json(folder / "placement.json", dataclasses.asdict(patch))
    sheet = {"id": ID, "arm": "eot", "sha256": sha256(folder / "patch.png"), "dpi": 300}
    sheet["card"] = dataclasses.asdict(CARD)
    write_json(folder / "print" / "sheet.json", sheet)
    return folder


def read_photos(folder):
    return json.loads((folder / "photos.json").read_text())


def read_names(run):
    return json.loads((run / "placement.json").read_text())["pictures"]


def shot(run, row=0, hidden=(), quad=QUAD, **options):
    """A photograph of the run's card in one of its pictures."""
    texture = to_bytes(load_image(run / "patch.png")[0])
    raster = card_picture(CARD, texture.astype(np.float32), DPI)
    for box in (CARD.tags[i].box for i in hidden):
        x, y, side = (round(v * DPI / 25.4) for v in (box.x, box.y, box.width))
        raster[y - 1 : y + side + 1, x - 1 : x + side + 1] = 255
    scene = to_bytes(load_image(run / "pictures" / "clean" / f"{read_names(run)[row]}.png")[0])
    values = Shot(**{"stops": -0.3, "read": 0.002, "blur": 0.5} | options)
    light = print_raster(raster, 1.0)
    return take_photograph(scene, quad, CARD, light, DPI, values, (420, 480), np.random.default_rng(0)).pixels


@pytest.fixture(scope="module")
def photos(run, tmp_path_factory):
    """Photographs of all kinds, and files that are not photographs."""
    folder = tmp_path_factory.mktemp("photos")
    first, second = read_names(run)
    plain = shot(run, degrees=10, corners=CORNERS)
    grey = np.asarray(Image.fromarray(plain).convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise
    (folder / second).mkdir()
    for name, pixels, options in (
        (f"{first}--plain.jpg", plain, {"quality": 95}),
        (f"{first}--turned.jpg", np.rot90(plain), {"quality": 95, "exif": exif}),
        (f"{first}--upside-down.png", shot(run, degrees=180), {}),
        (f"{first}--laid-upside-down.png", shot(run, quad=QUAD[2:] + QUAD[:2]), {}),
        (f"{first}--elsewhere.png", shot(run, row=1), {}),
        (f"{second}/hidden.png", shot(run, 1, hidden=[1], stops=-1.0), {}),
        (f"{second}--cut.png", shot(run, 1, right=0.3), {}),
        (f"{first}--grey.png", grey, {}),
        (f"{first}--deep.png", grey.astype(np.uint16) * 257, {}),
        (f"{first}--nothing.png", np.full((200, 300, 3), 90, np.uint8), {}),
        ("whose.png", plain, {}),
    ):
        Image.fromarray(pixels).save(folder / name, **options)
    for name in (f"{first}--text.jpg", f"{first}--phone.dng", "truth.json"):
        (folder / name).write_text("no picture")
    return folder


@pytest.fixture(scope="module")
def photo_scores(run, photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "photos"
    assert main(["score", str(run), str(photos), "--out", str(out), "--device", "cpu"]) == 0
    return out


@pytest.mark.slow
def test_every_photograph_is_scored_or_named(run, photo_scores):
    content = read_photos(photo_scores)
    first, second = read_names(run)
    entries = {photo["photo"]: photo for photo in content["photos"]}
    kinds = ("cut.png", "deep.png", "hidden.png", "plain.jpg", "upside-down.png")
    assert sorted(name.replace("/", "--").rpartition("--")[2] for name in entries) == list(kinds)
    assert entries[f"{second}/hidden.png"]["picture"] == entries[f"{second}--cut.png"]["picture"] == second
    assert [len(entries[f"{second}{end}"]["fiducials"]) for end in ("/hidden.png", "--cut.png")] == [3, 2]
    assert abs(entries[f"{first}--upside-down.png"]["patch"]["degrees"]) > 179
    assert entries[f"{first}--plain.jpg"]["residual_px"] < 0.5
    left = " | ".join(content["left_out"])
    for word in (
        "nothing.png: left out, 0 of the fiducials",
        "text.jpg: left out",
        "whose.png",
        ".dng is not read",
        f"turned.jpg: left out, it is the same photograph as {first}--plain.jpg",
        "grey.png: left out, it is the same",
        "laid-upside-down.png: left out, in its scene the card is turned by 180.0 degrees",
        "elsewhere.png: left out, another scene",
    ):
        assert word in left
    error_line = [photo["photo"] for photo in content["refused"]]
    assert len(content["left_out"]) == 8 and len(error_line) == 2 and not {*error_line} & {*entries}
    rows = {row["photo"]: row for row in csv.DictReader((photo_scores / "photos.csv").read_text().splitlines())}
    assert list(rows) == [*entries, *error_line] and all(rows[name]["reason"] for name in error_line)
    assert all(rows[name]["picture"] == first and rows[name]["cut"] for name in error_line)
    assert abs(float(rows[f"{first}--laid-upside-down.png"]["scene_turned"])) == pytest.approx(180, abs=2)
    assert len(list((photo_scores / "rectified").iterdir())) == len(rows)
    assert load_image(photo_scores / "overview.png")[0].shape[2] > 500
    page = (photo_scores / "photos.html").read_text()
    assert page.count('<td class="cell"') == len(content["map"]) and "data:image/png" in page
    assert all(f"{cell['success']['mean']:.2f}" in page for cell in content["map"])


@pytest.mark.slow
def test_a_patch_without_a_place_has_no_pose_old_pictures_go_and_the_encoder_is_named(
    run, photos, tmp_path, error_line
):
    copy, folder = tmp_path / "run", tmp_path / "in"
    shutil.copytree(run, copy)
    edit(copy / "placement.json", "fixed", False)
    encoder = json.loads((copy / MANIFEST).read_text())["encoder"]
    edit(copy / MANIFEST, "encoder", {key: encoder[key] for key in ("sha256", "fingerprint")} | {"defence": [[]]})
    folder.mkdir()
    plain, out = f"{read_names(run)[0]}--plain.jpg", copy / "photos"
    shutil.copy(photos / plain, folder)
    (out / "rectified" / "old").mkdir(parents=True)
    write_json(out / "photos.json", {})
    assert main(["score", str(copy), str(folder), "--device", "cpu"]) == 0
    assert [photo["scene"] for photo in read_photos(out)["photos"]] == [None]
    assert read_photos(out)["encoder"]["encoder"] == "pocket"  # the one that was loaded
    stages = yaml.safe_load((out / "preset.yaml").read_text())["transforms"]["stages"]
    assert list(stages) == list(json.loads((copy / MANIFEST).read_text())["config"]["transforms"]["stages"])
    assert [path.name for path in (out / "rectified").iterdir()] == [f"{plain}.png"]
    assert "`--out` another folder" in error_line("score", copy, folder, "--out", folder)


@pytest.mark.slow
def test_colours_and_exposures_are_separated(photo_scores):
    content = read_photos(photo_scores)
    stops = {re.split("[-/]", photo["photo"])[-1]: photo["stops"] for photo in content["photos"]}
    assert stops["hidden.png"] - stops["plain.jpg"] == pytest.approx(-0.7, abs=0.05)
    colour = json.loads((photo_scores / "colour.json").read_text())
    assert colour["kind"] == "polynomial" and content["colour"]["degree"] == colour["degree"]
    assert content["colour"]["exposure"] == "scene" and content["colour"]["compared"] >= 4
    assert content["notes"] == ["pictures: the patch was made from 2 of 2, which say nothing of other scenes"]


@pytest.mark.slow
def test_the_difference_to_the_digital_figure_is_split(photo_scores):
    content = read_photos(photo_scores)
    result = content["prediction"]
    assert sum(result["gap"].values()) == pytest.approx(content["difference"]["success"]["mean"])
    assert result["gap"]["colour"] == pytest.approx(result["printer"]["success"]["mean"] - 0.5)
    assert all(0 <= result[name]["recall_at_1"]["mean"] <= 1 for name in ("printer", "poses"))
    lines = photo_report.photo_table(content).splitlines()
    assert any(line.startswith("  printer and poses  ") for line in lines)
    assert any("colour " in line and "geometry " in line and "rest " in line for line in lines)


def compose_preset(path, *overrides):
    ConfigStore.instance().store(group="config", name="next", node=read_preset(path), package="_global_")
    return validate(composed("config=next", *overrides))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "overrides", "name"),
    [
        ("patch_eot3d", [], "paper"),
        ("patch", ["printer=generic", "perturbation.gamut=generic", "penalty=nps"], "measured"),
        ("patch", ["printer=family", "perturbation.gamut=[0.1,0.9]"], "measured"),
        ("patch", [], "measured"),
    ],
)
def test_the_next_preset_has_nothing_of_the_generic_printer(preset, overrides, name, tmp_path):
    config, colour = dataclasses.asdict(validate(composed(f"config={preset}", *overrides))), tmp_path / "colour.json"
    (tmp_path / "next.yaml").write_text(photo_report.preset_text(config, {}, colour))
    second = compose_preset(tmp_path / "next.yaml")
    assert (second.printer.name, second.printer.colour) == (name, str(colour.resolve()))
    assert second.perturbation.gamut == ([0.1, 0.9] if "family" in str(overrides) else None)
    assert getattr(second.penalty, "palette", str(colour)) == str(colour)


@pytest.mark.slow
def test_each_photograph_is_compared_with_its_own_picture(run, photos, monkeypatch):
    original = [to_bytes(load_image(run / "pictures/clean" / f"{name}.png")[0]) for name in read_names(run)]
    output = []

    def record(photo, _, clean, *rest):
        output.append((photo.row, clean))
        raise ValueError

    monkeypatch.setattr(scoring, "detect_card", lambda *_: CardDetection())
    monkeypatch.setattr(scoring, "measure_photo", record)
    with pytest.raises(ValueError, match="could be scored"):
        scoring.score_photos(run, photos, device="cpu")
    assert {row for row, _ in output} == {0, 1} and all(np.array_equal(original[row], clean) for row, clean in output)


@pytest.mark.slow
def test_views_are_scored_as_in_the_run(run):
    """A 'photograph' that is the untouched picture has cosine 1, and is recognised."""
    parts = build(validate(composed(*OVERRIDES)))
    value = []
    for row, image in enumerate(parts.queries.images):
        view = photo_view(to_bytes(image), 64)
        assert torch.equal(view.pixels, image)
        value.append(SimpleNamespace(view=view, photo=SimpleNamespace(row=row)))
    scores = score.judge_photos(score.make_judge(parts), value[::-1])
    assert scores.cosine == pytest.approx(1, abs=1e-5) and bool(scores.recall_at_1.all())
    assert not scores.success.any() and list(scores.nearest) == list(parts.queries.names)[::-1]


@pytest.mark.slow
def test_the_preset_composes_with_the_measured_values(run, photo_scores):
    second, first = compose_preset(photo_scores / "preset.yaml"), validate(composed(*OVERRIDES))
    assert compose_preset(photo_scores / "preset.yaml", "sanity=none").sanity.pictures == 0  # overrides the preset
    assert second.printer.name == "measured"
    assert second.printer.colour == str((photo_scores / "colour.json").resolve())
    stages = second.transforms.stages
    assert list(stages)[:4] == ["perspective", "viewpoint", "affine", "exposure"]
    low, high = stages["viewpoint"]["roll"]
    for photo in read_photos(photo_scores)["photos"]:
        assert any(low - 0.1 <= photo["scene"]["degrees"] + turn <= high + 0.1 for turn in (-360, 0, 360))
        for name in ("yaw", "pitch", "distance"):
            low_end, high_end = stages["viewpoint"][name]
            assert low_end - 1e-4 <= photo["scene"][name] <= high_end + 1e-4
    assert stages["exposure"]["stops"][0] < -0.5 and 0 < stages["perspective"]["jitter"] < 0.3
    for group in ("attack", "encoder", "perturbation", "data", "objective", "optimiser"):
        assert getattr(second, group) == getattr(first, group)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchscript", "plugin"])
def test_a_run_directory_does_not_start_a_program(name):
    run = validate(composed("config=patch", f"encoder={name}", "encoder.model=mine.pt"))
    for program in (None, "other.pt"):
        with pytest.raises(ValueError, match=r"--encoder-code mine\.pt"):
            refuse_program(run, program, "--encoder-code mine.pt")
    refuse_program(run, "mine.pt", "--encoder-code mine.pt")


def blacken(run):
    for path in (run / "pictures" / "clean").iterdir():
        save_image(path, torch.zeros(3, 64, 64))


MANIFEST, SHEET = "manifest.json", "print/sheet.json"
FAULTS = {
    "missing": (lambda run: None, [], "has no placement.json"),
    "encoder": (lambda run: edit(run / MANIFEST, "encoder", {"fingerprint": "0"}), [], "not the one of the run"),
    "config": (lambda run: edit(run / MANIFEST, "config", {"seed": 0}), [], "not of this version"),
    "print": (lambda run: edit(run / SHEET, "id", "vp-00000000"), [], "print it again"),
    "unprinted": (lambda run: (run / SHEET).unlink(), [], "print it first"),
    "clean": (blacken, [], "no longer what it was"),
    "device": (lambda run: None, ["--device", "nothing"], "engine.device"),
}


def edit(path, key, value):
    write_json(path, json.loads(path.read_text()) | {key: value})


@pytest.mark.slow
@pytest.mark.parametrize("what", FAULTS)
def test_errors_are_one_line_with_exit_code_2(run, photos, tmp_path, error_line, what):
    copy = tmp_path / "run"
    if what != "missing":
        shutil.copytree(run, copy)
    change, arguments, message = FAULTS[what]
    change(copy)
    assert message in error_line("score", copy, photos, *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_without_a_valid_photograph_is_refused(run, tmp_path, error_line):
    other = card(80, 80, "vp-00000000  eot")
    size = (420, 480)
    pixels = render_photo(card_light(other, fine=8), place_card(other, width=200, size=size), size, points=1, fine=8)
    Image.fromarray(pixels).save(tmp_path / f"{read_names(run)[0]}--other.png")
    line = error_line("score", run, tmp_path, "--device", "cpu")
    assert "none of 1 photographs" in line and "another card" in line
