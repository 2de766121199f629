"""`viewproof check`: one command, one page; what is refused before anything is attacked."""

import json
import shutil
from argparse import Namespace

import pytest

from attacks.commands import main
from attacks.commands.check import USES, run_words
from attacks.data.gallery import PHOTOS
from attacks.experiment.clean_views import PICTURES, CleanViews
from attacks.experiment.rehearsal import Rehearsal
from attacks.gate.policy import read_policy
from attacks.schema.composition import compose
from attacks.schema.encoder_word import encoder_keys
from attacks.verification.verify import verify
from tests.helpers.page import Page

SMALL = "data.size=32 attack.gradients=8 evaluate.views=8 evaluate.refine=0 evaluate.one_view=false sanity=none"


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("astronaut", "coffee", "chelsea", "clock"):
        (tmp_path / "labelled" / name).mkdir(parents=True)
        (tmp_path / "pictures").mkdir(exist_ok=True)
        shutil.copy(PHOTOS / f"{name}.png", tmp_path / "pictures")
        shutil.copy(PHOTOS / f"{name}.png", tmp_path / "labelled" / name)
    return tmp_path


@pytest.mark.slow
def test_one_command_ends_with_one_page(pictures, capsys):
    (pictures / "pictures" / "broken.png").write_text("no picture")
    command = ["check", "pocket", "pictures", "--for", "duplicates", "--minutes", "0.001", "--into", "run"]
    code = main([*command, "--run", SMALL])
    output = capsys.readouterr().out
    for words in (
        "before any attack, clean views: ",
        "minutes: about ",
        "for 4 of 4 photographs",
        "cannot be read: 1",
    ):
        assert words in output, words
    assert output.rstrip().endswith("page: run/check.html")
    content = json.loads((pictures / "run" / "metrics.json").read_text())
    assert code == {"PASS": 0, "FAIL": 3, "UNDECIDED": 4}[content["gate"]["verdict"]] and code != 0
    manifest = json.loads((pictures / "run" / "manifest.json").read_text())
    assert {"evaluate.most=4", "require=duplicate-finder"} <= {*manifest["overrides"]}
    page = Page((pictures / "run" / "check.html").read_text())
    for words in ("What was tried", "What was not tried", "What next", "How sure", "On what", "Signature"):
        assert words in page.text, words
    assert len(page.all("img")) == 2 and not page.all("script") and verify(pictures / "run").passed
    page_bytes = (pictures / "run" / "check.html").read_bytes()
    assert main([*command, "--run", SMALL]) == code  # finished: it is only decided again
    assert "minutes: about" not in capsys.readouterr().out
    assert (pictures / "run" / "check.html").read_bytes() == page_bytes
    assert main([*command, "--run", f"{SMALL} seed=1"]) == 1


@pytest.mark.slow
def test_random_weights_are_said_first_and_their_record_is_sound(pictures, capsys):
    words = f"{SMALL} encoder.weights=random data.count=2 data.size=64"
    command = ["check", "torchvision:mobilenet_v3_small", "pictures", "--for", "duplicates", "--into", "run"]
    assert main([*command, "--run", words.replace("data.size=32 ", "")]) in (3, 4)
    assert "weights are random" in capsys.readouterr().out
    assert "contradicts itself" not in (pictures / "run" / "check.html").read_text()


@pytest.mark.parametrize("use", USES)
def test_a_use_has_a_policy_and_a_run_of_its_threat(pictures, use):
    index = None if use in ("classifier", "moderation") else "labelled"
    options = Namespace(encoder="pocket", pictures="labelled", index=index, use=use, words="seed=1")
    options.words += " task.threshold=0.5" * (use == "moderation")
    preset, *words = run_words(options)
    run = compose(preset.removeprefix("config="), words)
    assert (run.require, run.seed, run.data.gallery) == (USES[use].policy, 1, index)
    assert {row.arm for row in read_policy(run.require).requirements} >= {"clean", "eot"}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("pocket", {"encoder": "pocket"}),
        ("timm:resnet50.a1_in1k", {"encoder": "timm", "encoder.model": "resnet50.a1_in1k"}),
        ("a/b.onnx", {"encoder": "onnx", "encoder.model": "a/b.onnx"}),
        ("b.pt", {"encoder": "torchscript", "encoder.model": "b.pt"}),
        ("w.safetensors", {"encoder": "pocket", "encoder.weights": "w.safetensors"}),
        ("labelled", {"encoder": "transformers", "encoder.model": "labelled"}),
    ],
)
def test_an_encoder_is_a_name_a_file_or_a_folder(pictures, text, keys):
    assert encoder_keys(text) == keys


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("poket pictures --for duplicates", "did you mean pocket"),
        ("pocket nowhere --for duplicates", "`nowhere` does not exist"),
        ("pocket pictures --index nowhere --for verification", "`PICTURES` must have labels"),
        ("pocket labelled --index nowhere --for verification", "`nowhere` does not exist"),
        ("pocket labelled --index pictures --for classification", "`--index` must have labels"),
        ("pocket pictures --for moderation", "`--run` must give `task.threshold` with --for moderation"),
        ("pocket pictures --for everything", "invalid choice: 'everything'"),
        ("pocket pictures", "the following arguments are required: --for"),
        ("pocket pictures --for duplicates --minutes 0", "`--minutes` must be above 0"),
        ("pocket pictures --for duplicates --run perturbation.eps=1/255", "the policy needs perturbation.eps=4/255"),
        ("pocket pictures --for duplicates --run attack.gradientz=3", "attack.gradientz"),
        ("pocket pictures --for duplicates --into pictures/coffee.png", "`--into`"),
    ],
)
def test_what_cannot_be_decided_is_refused_first(pictures, capsys, words, part):
    assert main(["check", *words.split()]) == 1
    error = capsys.readouterr().err
    assert part in error and error.count("\n") == 1 and not (pictures / "outputs").exists()


def test_the_minutes_fix_how_many_pictures_are_tried():
    audit = Rehearsal(100, 0, "", CleanViews(0.0, 1, 1, 1.0, None), 10.0, 60.0)
    assert [audit.fitting(minutes) for minutes in (0.1, 6, 1000)] == [PICTURES, 30, 100]
    assert audit.minutes(audit.fitting(6)) == 6
