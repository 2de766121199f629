"""What open_clip's models are refused for, in one line; and that nothing that comes with one is run."""

import json
import logging
import sys

import pytest
import torch
from safetensors.torch import save_file

from attacks.encoders.loading import load_encoder

pytest.importorskip("open_clip")
from tests.encoders.families.test_open_clip import (
    PLATES,
    SAID,
    WORDS,
    folder_of,
    made,
    open_clip,
    refusal,
    registered,
    tags,
)

pytestmark = pytest.mark.families
__all__ = ["registered", "tags"]  # fixtures


REFUSED = {
    "unknown model": ({"model": "ViT-B-33"}, "one of open_clip's .*'ViT-B-33'.*near it: ViT-B-32"),
    "unknown tag": (
        {"model": "tiny", "weights": "best"},
        "of tiny must be first, other, pretrained, random or a file",
    ),
    "none offered": ({"model": "tiny-coca"}, "open_clip has no weights for tiny-coca"),
    "no file": ({"model": "tiny", "weights": "gone.safetensors"}, "gone.safetensors. do not exist"),
    "no folder": ({"model": "local-dir:nowhere"}, "there is no `nowhere/open_clip_config.json`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_one_line(case, tags):
    given, message = REFUSED[case]
    refusal(message, (ValueError, FileNotFoundError), **given)


def test_a_file_of_another_model_is_refused(tmp_path):
    save_file(made("tiny-resnet", 1).state_dict(), tmp_path / "other.safetensors")
    refusal(r"other\.safetensors. do not fit", model="tiny", weights=tmp_path / "other.safetensors")


def test_a_bad_folder_is_refused(tmp_path):
    model = folder_of(tmp_path, vision_cfg=PLATES | {"wings": 2})
    refusal("has no open_clip_model.safetensors or", FileNotFoundError, model=model)
    refusal("of a folder are pretrained, random or a file", model=model, weights="tag")
    refusal("open_clip_config.json` makes no model of open_clip's .*wings", model=model, weights="random")
    (tmp_path / "open_clip_config.json").write_text("[]")
    refusal("makes no model of open_clip's", model=model, weights="random")


class Evil:
    def __reduce__(self):
        return exec, ("import builtins; builtins.ran_by_test_family_open_clip = True",)


def assert_nothing_ran():
    assert not hasattr(sys.modules["builtins"], "ran_by_test_family_open_clip")


def test_pickles_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "open_clip_pytorch_model.bin"
    torch.save({"logit_scale": Evil()}, file)
    refusal("hold more than tensors", model="tiny", weights=file)
    refusal("hold more than tensors", model=folder_of(tmp_path))
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"bad": {"file": str(file)}})
    refusal("open_clip's weights bad of tiny cannot be used .*Weights only load failed", model="tiny")
    assert_nothing_ran()


def test_the_code_of_a_tokenizer_is_not_run(tmp_path):
    (tmp_path / "evil.py").write_text("import builtins; builtins.ran_by_test_family_open_clip = True")
    auto = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto, "tokenizer_class": "Tokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    words = WORDS | {"hf_tokenizer_name": "evil", "tokenizer_kwargs": {"trust_remote_code": True}}
    encoder = load_encoder("open_clip", folder_of(tmp_path, text_cfg=words), weights="random")
    with pytest.raises(ValueError, match=r"tokenizer of .* cannot be used .*custom code") as caught:
        encoder.texts(SAID)
    assert "\n" not in str(caught.value)
    assert_nothing_ran()


def test_nobody_is_asked_to_run_the_code_of_a_text_tower(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import builtins; builtins.ran_by_test_family_open_clip = True")
    auto = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    monkeypatch.setattr("builtins.input", lambda _: "y")  # as `yes |` would say
    folder = folder_of(tmp_path, text_cfg={"hf_model_name": str(tmp_path), "hf_tokenizer_name": str(tmp_path)})
    refusal("makes no model of open_clip's", model=folder, weights="random")
    assert_nothing_ran()


def test_without_a_network_there_is_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"far": {"hf_hub": "nobody/nothing/"}})
    with caplog.at_level(logging.WARNING):
        refusal("open_clip's weights far of tiny could not be fetched.*encoder.weights=random", model="tiny")
    assert not caplog.records
