"""What an untrusted preset, folder of presets or encoder may not do, refused in one line."""

import importlib
import pickle
from types import SimpleNamespace

import pytest

from attacks import load_encoder
from attacks.evaluation.classes import class_embeddings
from attacks.run import CONFIGS, compose
from attacks.schema import presets
from attacks.schema.composition import refuse_unchecked, stored_preset
from tests.helpers.wrong import refused
from tests.run.test_bad_directories import Touches

#: Logging as Hydra would set it up before the run: it opens the file.
LOGGING = "version: 1\nhandlers: {x: {class: logging.FileHandler, filename: MARK}}\nroot: {handlers: [x]}\n"
UNDER_HYDRA = "# @package hydra.job_logging\n"
FILES = {
    "dir/config/header.yaml": UNDER_HYDRA + LOGGING,
    "dir2/config/placed.yaml": "# @package _global_\ndefaults: [{/stuff@hydra.job_logging: y}]\n",
    "dir2/stuff/y.yaml": LOGGING,
    "dir3/hydra/job_logging/y.yaml": LOGGING,
    "elsewhere/config/key.yaml": "# @package _global_\nhydra:\n  job_logging: {LOG}\n",
    "evil.yaml": UNDER_HYDRA + LOGGING,
    "bare.yaml": LOGGING,
    "up.yaml": "defaults: [UP/evil]\n",
    "up_value.yaml": "defaults: [override /encoder: UP/evil]\n",
    "up_placed.yaml": "defaults: [UP/bare@hydra.job_logging]\n",
    "root.yaml": "defaults: [/ROOT/evil]\n",
    "dir4/encoder/theirs.yaml": "a: [{b: {_target_: os.system}}]\n",
    "quickstart.yaml": "seed: 1\n",
}
PRESETS = [["config={}/up.yaml"], ["config={}/up_value.yaml"], ["config={}/up_placed.yaml"], ["config={}/root.yaml"]]
FOLDERS = [
    ["--config-dir={}/dir", "config=header"],
    ["--config-dir", "{}/dir2", "config=placed"],
    ["--config-dir={}/dir3", "config=smoke"],
    ["--config-dir={}/dir4", "config=smoke"],
    ["--config-dir={}/linked", "config=key"],
    ["--config-d={}/elsewhere", "config=key"],
    ["hydra.searchpath=[file://{}/elsewhere]", "config=key"],
]
PATHS = [
    ["config={}/quickstart.yaml"],
    ["config=UP/evil"],
    ["config=smoke", "encoder=UP/evil"],
    ["--config-path={}/elsewhere"],
    ["-cn", "other"],
    ["--experimental-rerun={}/rerun.pickle"],
]


@pytest.fixture
def place(tmp_path):
    """The files, and a function that fills in the places in a text."""

    def fill(text):
        replacements = {"{}": str(tmp_path), "ROOT": str(tmp_path), "MARK": str(tmp_path / "mark")}
        replacements["UP"] = "/".join([".."] * len((CONFIGS / "config").parts)) + str(tmp_path)
        inside = LOGGING.rstrip().replace("\n", "\n    ")
        text = text.replace("{LOG}", f"\n    {inside}")
        for word, value in replacements.items():
            text = text.replace(word, value)
        return text

    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "config").symlink_to(tmp_path / "elsewhere" / "config")
    (tmp_path / "rerun.pickle").write_bytes(pickle.dumps(Touches()))
    return fill


@pytest.mark.parametrize("arguments", PRESETS + FOLDERS + PATHS, ids=" ".join)
def test_unchecked_presets_and_folders_are_refused_unread(place, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)

    def check(words):
        refuse_unchecked([stored_preset(word) for word in words])

    refused("refused|must name a choice|rename", check, [*map(place, arguments), "seed=1"])
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "content", ["seed: ${evaluate.views}\n", "a: [1, 2]\nb: ${a[0]}\n", "a: {b: 1, c: '${.b}'}\n"]
)
def test_a_preset_refers_to_its_own_keys(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    presets.read_preset(path)


def test_two_presets_with_one_name_are_refused(tmp_path):
    paths = [tmp_path / folder / "mine.yaml" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("seed: 1\n")
    refused("b/mine.yaml` has the name of another", stored_preset, f"config={paths[0]},{paths[1]}")


@pytest.mark.slow
def test_only_the_command_line_may_choose_a_secret(tmp_path):
    preset = tmp_path / "theirs.yaml"
    preset.write_text("defaults: [/config/smoke, _self_]\nencoder: {key: VIEWPROOF_KEY}\n")
    words = ["encoder=http", "encoder.model=http://localhost:1/embed"]
    with pytest.raises(ValueError, match="names a secret that is sent, so a preset may not choose it"):
        compose(str(preset), words)
    assert compose(str(preset), [*words, "encoder.key=VIEWPROOF_KEY"]).encoder.key == "VIEWPROOF_KEY"


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError("deep\nand deeper"), ZeroDivisionError("by 0")])
def test_any_error_of_a_library_becomes_one_line(monkeypatch, error):
    def load(_):
        raise error

    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(load=load))
    with pytest.raises(ValueError, match=f"encoder timm:x cannot be made .{type(error).__name__}") as info:
        load_encoder("timm", "x")
    assert "\n" not in str(info.value) and info.value.__cause__ is error
    with pytest.raises(ValueError, match="does not take the class 'a'"):
        class_embeddings(load, ["a"], ["{}"])
