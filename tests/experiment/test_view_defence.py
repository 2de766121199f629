"""Defences of a platform before its own resizer: where they stand, what a run records, the cells of deployment."""

import json
from io import BytesIO

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from attacks import tiles, verify
from attacks.data.images import to_bytes
from attacks.encoders import Defended
from attacks.encoders.defended import ViewDefence
from attacks.encoders.description import description_rows, identity
from attacks.evaluation.clusters import Sample
from attacks.evaluation.deployment import deployment
from attacks.evaluation.judge import CellScores
from attacks.experiment.job import job, show_part
from attacks.run import compose
from attacks.study.assembly import build
from transforms import Compose, Downscale
from transforms.camera import MedianPool, PixelCrop
from transforms.wrappers import OneOf, widened

VIEWS = ["transforms=resizers", "data.count=1", "data.size=192"]
NAMES = {"area": Downscale, "median": MedianPool, "random_phase": PixelCrop}


def build_run(*words):
    run = compose("smoke", [*VIEWS, *words])
    return run, build(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_stands_right_before_the_resizers_and_the_attack_has_its_gradient(name):
    (run, parts), (_, plain) = build_run(f"defence={name}"), build_run()
    stages, bare = parts.transforms.stages, plain.transforms.stages
    at = next(i for i, stage in enumerate(stages) if isinstance(stage, OneOf))
    assert (*stages[: at - 1], *stages[at:]) == bare
    (defence_stage,) = stages[at - 1].stages.stages
    assert isinstance(defence_stage, NAMES[name]) and not isinstance(parts.encoder, Defended)
    assert widened(Compose([stages[at - 1]]), 2).stages == (stages[at - 1],)  # a platform's defence is what it is
    images = tiles(192).images[:1].requires_grad_()
    u = torch.full((1, parts.transforms.dims), 0.4)
    chain = parts.transforms(images, u)
    (gradient,) = torch.autograd.grad(chain.square().sum(), images)
    assert gradient.abs().sum() > 0
    assert (
        description_rows(identity(run.encoder, parts.encoder, parts.transforms)).count(
            ("defence", f"{defence_stage!r} before one_of of the views")
        )
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["defence.before=lens"], r"`defence\.before` must name a stage of transforms=resizers .*; got lens"),
        (["transforms=identity"], r"`defence\.before` must name a stage of transforms=identity \(it has none\)"),
        (["defence.stages.downscale.size=0"], r"`defence\.stages\.downscale`: `size`"),
    ],
)
def test_a_place_that_the_views_do_not_have_is_refused_in_one_line(words, message):
    with pytest.raises(ValueError, match=message) as failure:
        build_run("defence=area", *words)
    assert "\n" not in str(failure.value)


def seen_by_the_judge(monkeypatch, defence, names, seed=0):
    """The pictures of each cell (codec, resampler), as 8-bit arrays, and the files that were deployed."""
    images = tiles(192).spread(len(names)).images
    views = []

    def judge_spy(_, pictures, rows, bank):
        views.append([to_bytes(view) for view in bank.transforms(pictures, bank.u.expand(len(rows), -1))])
        return CellScores(torch.zeros(len(rows), 1), torch.zeros(len(rows), 1, dtype=torch.bool))

    monkeypatch.setattr("attacks.evaluation.deployment.score_cells", judge_spy)
    sample = Sample(torch.arange(len(names)), names, names)
    cells = deployment({"eot": images}, sample, None, (48, 48), (1.0,), defence, seed)[0]
    keys = dict.fromkeys((row["codec"], row["resampler"]) for row in cells)
    return dict(zip(keys, views, strict=True)), map(to_bytes, images)


def through_jpeg(pixels):
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return np.array(Image.open(file))


def area(pixels):
    return cv2.resize(pixels, (96, 96), interpolation=cv2.INTER_AREA)


def median(pixels):
    """The lower median of each block of 2 x 2."""
    blocks = pixels.reshape(96, 2, 96, 2, 3).transpose(0, 2, 4, 1, 3).reshape(96, 96, 3, 4)
    return np.sort(blocks)[..., 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "oracle"),
    [(Downscale(96, "cv2_area", eight_bit=True), area), (MedianPool(96), median)],
    ids=["area", "median"],
)
def test_cells_of_deployment_are_the_libraries_calls_on_the_defended_file(monkeypatch, stage, oracle):
    cells, files = seen_by_the_judge(monkeypatch, ViewDefence(Compose([stage]), "one_of"), ("a", "b"))
    for i, pixels in enumerate(files):
        for codec, save in (("PNG", lambda pixels: pixels), ("JPEG 90", through_jpeg)):
            pixels_of_file = oracle(save(pixels))
            cubic = cv2.resize(pixels_of_file, (48, 48), interpolation=cv2.INTER_CUBIC)
            lanczos = np.array(Image.fromarray(pixels_of_file).resize((48, 48), Image.Resampling.LANCZOS))
            for resampler, expected in (
                ("none", pixels_of_file),
                ("OpenCV cubic", cubic),
                ("Pillow lanczos", lanczos),
            ):
                assert np.array_equal(cells[codec, resampler][i], expected)


@pytest.mark.slow
def test_a_random_defence_is_drawn_by_seed_and_name_once_for_each_picture(monkeypatch):
    crop, names = ViewDefence(Compose([PixelCrop(11)]), "one_of"), ("a", "b", "c", "d")

    def places(seed=0, names=names):
        """Where each file was cut, which must be the same in every cell."""
        cells, files = seen_by_the_judge(monkeypatch, crop, names, seed)
        corners = []
        for i, pixels in enumerate(files):
            windows = {(y, x): pixels[y : y + 181, x : x + 181] for y in range(12) for x in range(12)}
            ((y, x),) = [at for at, window in windows.items() if np.array_equal(window, cells["PNG", "none"][i])]
            linear = cv2.resize(windows[y, x], (48, 48), interpolation=cv2.INTER_LINEAR)
            assert np.array_equal(cells["PNG", "OpenCV linear"][i], linear)
            corners.append((y, x))
        return corners

    first = places()
    assert first == places() != places(seed=1) and len(set(first)) > 1
    assert places(names=("c", "a")) == [first[2], first[0]]  # as verify judges some of the pictures again


SHORT = ["attack.steps=1", "attack.views=2", "sanity=none", "evaluate.views=4", "evaluate.refine=0"]
SHORT += ["evaluate.deploy=1", "evaluate.one_view=false", "defence=random_phase"]


@pytest.mark.slow
def test_a_run_states_its_defence_and_passes_verify(tmp_path, capsys):
    run = compose("smoke", [*VIEWS, *SHORT])
    content = job(run, tmp_path / "run", "smoke", [*VIEWS, *SHORT])
    line = "defence PixelCrop(margin=11) before one_of of the views; drawn for every view: pixelcrop left (px)"
    assert line in capsys.readouterr().out
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    for record in (manifest, content):
        assert record["encoder"]["defence"] == ["PixelCrop(margin=11)"] and record["encoder"]["before"] == "one_of"
    assert manifest["identity"]["defence.before"] == '"one_of"'
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<dd>PixelCrop(margin=11) before one_of of the views</dd>") == 1
    assert "passed through the defence PixelCrop(margin=11) and resized" in page
    verdict = verify(tmp_path / "run", 1)
    assert verdict.passed and not verdict.notes, verdict
    show_part(run)
    output = capsys.readouterr().out
    assert "\n  defence    PixelCrop(margin=11) before one_of of the views\n" in output
    assert output.count("defence") == 1
