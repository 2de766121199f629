"""README and docs: short, with links that exist and commands that are run."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tvf
from PIL import Image

from attacks import load_encoder
from attacks.experiment.results import headline
from tests.helpers import report_pages
from tests.test_rooms import ROOMS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "scripts"))
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
#: Pages to look things up in, the two about the code, and the paper. `docs/api/` is written when the site is built.
LONG = {"configuration", "transforms", "benchmarks", "decisions", "architecture", "references", "paper"}


def test_the_readme_begins_with_the_two_commands():
    first = re.search(r"```bash\n(.*?)```", README, re.DOTALL).group(1)
    assert first == 'pip install -e ".[test]" && python -m attacks.run config=quickstart\npython -m pytest\n'


@pytest.mark.parametrize(
    ("page", "limit"), [("README.md", 900), ("docs/architecture.md", 1800), ("docs/paper.md", 1600)]
)
def test_the_first_pages_are_short(page, limit):
    assert len((ROOT / page).read_text().split()) <= limit


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_answers_one_question_in_few_words(page):
    assert page.stem in LONG or len(page.read_text().split()) <= 900


def shape(text):
    """A text with its numbers masked, and the white space that depends on their widths."""
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?", "#", text).split())


def test_the_output_in_the_readme_has_the_shape_of_what_a_run_prints():
    (prose,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert shape(headline(report_pages.content())).startswith(shape(prose))


@pytest.mark.slow
def test_an_encoder_takes_five_lines_of_public_names_that_run(tmp_path, monkeypatch, capsys):
    example = PYTHON.search(README)[1]
    assert len([line for line in example.splitlines() if line.strip()]) <= 5
    assert {*re.findall(r"^from (\w+)", example, re.MULTILINE)} == {"attacks"}
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README", "exec"), {})
    table = capsys.readouterr().out
    clean, eot = (float(re.search(rf"^{arm} +([\d.]+)", table, re.MULTILINE)[1]) for arm in ("clean", "eot"))
    assert eot > clean


def test_every_interval_of_readme_and_paper_is_one_of_the_tables():
    tables = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("leaderboard", "defence_table"))
    for page in ("README.md", "docs/paper.md"):
        figures = re.findall(r"[\d.]+\s\[-?[\d.]+,[\d.]+\]", (ROOT / page).read_text())
        assert len(figures) > 2 and all(" ".join(figure.split()) in tables for figure in figures), page
    places = re.findall(r":(?:start-after|end-before): \"(.*)\"", (ROOT / "docs" / "paper.md").read_text())
    assert len(places) == 4 and all(tables.count(place) >= 1 for place in places)


def test_the_five_lost_gradients_are_right():
    """The values are those of torchvision, OpenCV, torch and Pillow, the gradients those of finite differences, and
    of a hook."""
    names = {}
    page = (ROOT / "docs" / "lost_gradients.md").read_text()
    exec(compile(PYTHON.search(page)[1], "lost_gradients", "exec"), names)
    image, start, end, matrix, grid = (names[key].detach() for key in ("image", "start", "end", "matrix", "grid"))
    calls = {
        "end": lambda image, end: names["perspective"](image, start.to(end), end),
        "matrix": lambda image, matrix: names["warp_affine"](image, matrix, (128, 128)),
        "grid": lambda image, grid: names["DenseGrid"](grid)(image, torch.zeros(1, 1)),
        "image": lambda _, image: names["resize"](image, (48, 48), "pil_bicubic"),
    }
    small = [np.array(Image.fromarray(x.numpy()).resize((48, 48), Image.Resampling.BICUBIC)) for x in image[0]]
    theirs = {
        "end": tvf.perspective(image, start.tolist(), end.tolist())[0],
        "matrix": cv2.warpAffine(image[0].permute(1, 2, 0).numpy(), matrix.numpy(), (128, 128)).transpose(2, 0, 1),
        "grid": torch.nn.functional.grid_sample(image, grid[None], align_corners=False)[0],
        "image": np.stack(small),
    }
    for name, call in calls.items():
        leaf, exact = names[name].detach().double(), image.double()
        torch.testing.assert_close(call(image, leaf.float())[0], torch.as_tensor(theirs[name]), rtol=0, atol=1e-3)
        leaf = leaf + 1e-4 * torch.rand_like(leaf)  # off the kinks, where a pixel is read as it is
        move = 1e-7 * torch.randn_like(leaf)
        slope = [call(exact, leaf + sign * move).square().mean() for sign in (1, -1)]
        gradient = torch.autograd.grad(call(exact, leaf.requires_grad_()).square().mean(), leaf)[0]
        assert (gradient * move).sum().item() == pytest.approx((slope[0] - slope[1]).item() / 2, rel=5e-3)
        assert name == "image" or (names[name].grad - gradient).norm() < 0.2 * gradient.norm()
    encoder, outputs = load_encoder("pocket"), []
    encoder.get_submodule("stages.2").register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    by_hook = torch.autograd.grad(encoder(names["image"]).square().sum(), outputs)[0]
    torch.testing.assert_close(names["at_layer"], by_hook.flatten(1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_files_and_modules_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        built_later = target.startswith(("api/", "gallery/", "parts/"))  # see test_site.py
        assert target.startswith("http") or built_later or (page.parent / target).exists(), target
    for path in re.findall(r"\b(?:attacks|transforms|tests|scripts|configs)/[\w/]+(?:\.\w+|/)", text):
        assert (ROOT / path).exists() or (page.parent / path).exists(), path
    for name in re.findall(r"`(attacks(?:\.\w+)+)[`(]", text):
        module, _, attribute = name.rpartition(".")
        assert importlib.util.find_spec(module), name
        assert hasattr(importlib.import_module(module), attribute) or importlib.util.find_spec(name), name


def test_the_architecture_page_matches_the_imports_of_the_code():
    arrows = [line.split("<-") for line in ROOMS["attacks"].strip().splitlines()]
    expected = {room: set(below.split()) for names, below in arrows for room in names.split()}
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.findall(r"^\|`(\w+)(?:\.py)?`\|[^|]*\|([^|]*)\|$", page, re.MULTILINE)
    assert {room: set(re.findall(r"\w+", below)) for room, below in table} == expected


def test_every_command_of_the_docs_is_run():
    from run_docs import RUNNERS

    assert "run_docs.py README.md docs/*.md" in (ROOT / ".ci" / "run").read_text()
    for runner in RUNNERS.values():
        assert (ROOT / runner).exists(), runner


@pytest.mark.slow
def test_a_fork_runs_in_its_folder_and_its_exit_status_counts(tmp_path):
    from run_docs import Command, run_in_fork

    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    run_in_fork(Command(""), tmp_path, ["attacks.run", "config=./mine.yaml", "--cfg", "job"])
    with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
        run_in_fork(Command("verify"), tmp_path, ["viewproof", "verify", "elsewhere"])
    with pytest.raises(subprocess.CalledProcessError, match="exit status 1"):
        run_in_fork(Command("a warning is an error"), tmp_path, ["-c", "import warnings; warnings.warn('x')"])


def test_the_rows_of_real_encoders_are_those_of_the_leaderboard():
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    board = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = [
        line.strip("|").split("|") for line in README.splitlines() if re.match(r"\|(EfficientNet|open_nsfw)", line)
    ]
    assert len(rows) == 4
    for name, *figures in rows:
        encoder = name.replace("EfficientNet-Lite", "lite")
        assert [row[4:7] for row in board if row[0] == encoder and row[2:4] == ["4/255", "camera"]] == [figures]
