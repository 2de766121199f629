"""What is particular to TorchScript files: programs that take no hooks, and that a preset may not name."""

from functools import partial

import pytest
import torch
from torch import nn

from attacks import load_encoder
from attacks.encoders import Layers
from attacks.encoders.layers import layer_listing, visits
from attacks.evaluation.drift import layer_order
from tests.helpers import encoder_laws as laws
from tests.helpers.runs import call
from tests.helpers.tiny_models import PREPROCESS, save_script, tiny_network

refusal = partial(laws.refusal, family="torchscript")


@pytest.fixture(params=[None, torch.zeros(1, 3, 16, 16)], ids=["scripted", "traced"])
def encoder(request, tmp_path):
    """Of a file; a scripted one is saved in training mode."""
    network = tiny_network() if request.param is not None else tiny_network().train()
    path = save_script(tmp_path / "network.pt", network, request.param)
    return load_encoder("torchscript", str(path), preprocess=PREPROCESS)


def test_the_repr_names_the_file_and_layers_take_no_hooks(encoder):
    picture = torch.rand(1, 3, 20, 20)
    assert "torchscript:" in repr(encoder) and "to 16x16" in repr(encoder)
    assert Layers(encoder, ["output"])(picture)["output"].shape == (1, 5)
    assert [visit.name for visit in visits(encoder, picture)] == ["output"]
    assert "torchscript:" in layer_listing(encoder, picture)
    assert layer_order(encoder, ["all"], picture) == {"output": "flat"}
    with pytest.raises(ValueError, match="`layers`: the encoder has no '0'; it has no named layers, only 'output'"):
        Layers(encoder, ["0"])


def test_a_map_of_features_is_flattened(tmp_path):
    path = save_script(tmp_path / "network.pt", nn.Conv2d(3, 2, 4, 4))
    encoder = load_encoder("torchscript", str(path), preprocess=PREPROCESS)
    assert encoder(torch.rand(2, 3, 9, 9)).shape == (2, 2 * 4 * 4)


def test_files_of_another_kind_are_refused(tmp_path):
    path = save_script(tmp_path / "network.pt", tiny_network())
    refusal("network.pt .*give `encoder.preprocess.std`", path, preprocess={"size": 8, "mean": [0, 0, 0]})
    laws.assert_broken_files_are_refused(path, partial(refusal, preprocess=PREPROCESS), "not a TorchScript file")
    for state in ({"bomb": laws.Bomb()}, tiny_network().state_dict()):
        torch.save(state, path)
        refusal("network.pt is not a TorchScript file.*state_dict needs the network", path, preprocess=PREPROCESS)
    path_of_constants = save_script(path, tiny_network(), freeze=True)
    refusal("network.pt .*torch.jit.freeze", path_of_constants, preprocess=PREPROCESS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        "defaults:\n  - override /encoder: torchscript\nencoder: {model: FILE}",
        "defaults:\n  - override /encoder: onnx\nencoder: {name: torchscript, model: FILE}",
    ],
    ids=["chosen", "under another name"],
)
def test_only_the_command_line_may_name_a_torchscript_file(tmp_path, monkeypatch, capsys, lines):
    def error(*arguments):
        assert call(monkeypatch, *arguments) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    preset, missing = tmp_path / "foreign.yaml", tmp_path / "none.pt"
    preset.write_text("# @package _global_\n" + lines.replace("FILE", str(missing)))
    start = (f"config={preset}", f"hydra.run.dir={tmp_path / 'out'}")
    family, model = "encoder=torchscript", f"encoder.model={missing}"
    for typed in ((), (family,), (model,)) if "override /encoder: torchscript" in lines else ((),):
        assert "a preset may not choose it" in error(*start, *typed)
    preprocess = "encoder.preprocess={size: 16, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}"
    assert "none.pt does not exist" in error(*start, family, model, preprocess)
