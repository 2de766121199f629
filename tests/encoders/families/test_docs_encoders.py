"""The commands of docs/encoders.md, each with a tiny model in the place of the one that would be fetched."""

import json
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks.data.gallery import PHOTOS
from tests.encoders.families.test_plugins import install
from tests.run.test_run import call

pytestmark = pytest.mark.families
timm = pytest.importorskip("timm")
open_clip = pytest.importorskip("open_clip")
hf = pytest.importorskip("transformers")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("onnx")
from tests.helpers.onnx_files import exported  # noqa: E402

PAGE = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text()
COMMANDS = re.findall(r"^\|.*?\| `(python -m attacks\.run .*?)` \|$", PAGE, re.MULTILINE)

PLATES = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
WORDS = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """model of the page -> what stands in for it: a small model of the same family, with its library's own files."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "configs").mkdir()
    (folder / "configs" / "tiny-clip.json").write_text(
        json.dumps({"embed_dim": 12, "vision_cfg": PLATES, "text_cfg": WORDS})
    )
    open_clip.add_model_config(folder / "configs")
    text = SIZES | {"vocab_size": 64, "eos_token_id": 1}
    clip = hf.CLIPConfig(
        text_config=text, vision_config=SIZES | {"image_size": 32, "patch_size": 8}, projection_dim=8
    )
    hf.CLIPModel(clip).save_pretrained(folder / "clip")
    hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder / "clip")
    dino = hf.Dinov2Config(**SIZES, image_size=28, patch_size=14)
    hf.Dinov2Model(dino).save_pretrained(folder / "dino")
    hf.BitImageProcessor(size={"shortest_edge": 32}, crop_size=28).save_pretrained(folder / "dino")
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    diffusers.AutoencoderKL(**blocks, block_out_channels=[8, 8], norm_num_groups=4).save_pretrained(folder / "vae")
    network = nn.Sequential(nn.Conv2d(3, 4, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6))
    exported(network, folder / "arcface.onnx", dynamo=False, side=112)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(network.eval()), folder / "network.pt")
    yield {
        "resnet50": "resnet18",
        "vit_small_patch14_dinov2.lvd142m": "test_vit",
        "ViT-B-32": "tiny-clip",
        "openai/clip-vit-base-patch32": folder / "clip",
        "facebook/dinov2-base": folder / "dino",
        "stabilityai/sd-vae-ft-mse": folder / "vae",
        "arcface.onnx": folder / "arcface.onnx",
        "network.pt": folder / "network.pt",
        "my_encoder": "means",
    }
    open_clip.factory._MODEL_CONFIG_PATHS.remove(folder / "configs")
    del open_clip.factory._MODEL_CONFIGS["tiny-clip"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the commands are typed: pictures, classes, and an installed package."""
    (tmp_path / "my" / "pictures").mkdir(parents=True)
    for name in ("coffee.png", "clock.png"):
        shutil.copy(PHOTOS / name, tmp_path / "my" / "pictures")
    (tmp_path / "classes.txt").write_text("coffee\nstop sign\nparking meter\n")
    install(tmp_path, monkeypatch, "tiny_docs_encoders")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(argument, tiny):
    key, _, given = argument.partition("=")
    if key == "config":
        return "config=smoke"
    if key == "encoder.weights":
        return "encoder.weights=random"
    return f"encoder.model={tiny[given]}" if key == "encoder.model" else argument


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c.split()[4:6]))
def test_the_command_runs(command, tiny, place, monkeypatch, capsys):
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "attacks.run"]
    given = [shortened(word, tiny) for word in words[3:]]
    if "encoder=timm" in given:  # its weights would be fetched; the rest come with their folder or file
        given.append("encoder.weights=random")
    if "encoder=torchvision" in given:
        given.append("encoder.weights=random")
    assert call(monkeypatch, *given, f"hydra.run.dir={place / 'run'}") == 0, capsys.readouterr().err
    metrics = json.loads((place / "run" / "metrics.json").read_text())
    assert metrics["cost"]["backward"] > 0
    assert metrics["encoder"]["name"] == next(w.split("=")[1] for w in words if w.startswith("encoder="))


def test_there_is_a_command_for_every_family():
    from attacks.schema.groups import CHOICES

    named = {re.search(r"encoder=(\w+)", command)[1] for command in COMMANDS}
    assert named == set(CHOICES["encoder"])


def test_the_models_that_are_named_exist():
    assert "vit_small_patch14_dinov2.lvd142m" in PAGE and "vit_small_patch14_dinov2.lvd142m" in timm.list_pretrained()
    assert "ViT-B-32 encoder.weights=laion2b_s34b_b79k" in PAGE
    assert ("ViT-B-32", "laion2b_s34b_b79k") in open_clip.list_pretrained()


def test_what_print_shows_is_what_the_page_shows(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```text\n(torchvision:.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/encoders.md", "exec"), {})
    said = re.sub(r"(tensors) [0-9a-f]{12}", r"\1 ...", capsys.readouterr().out)  # torch's generator may change
    assert re.sub(r"(tensors) [0-9a-f]{12}", r"\1 ...", shown) in said
