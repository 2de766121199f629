"""TorchScript files as encoders; a preset may not name one."""

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from attacks import Layers, load_encoder
from attacks.encoders.engine import Decision
from attacks.encoders.engine.prepare import prepare
from attacks.encoders.layers import layer_listing, visits
from attacks.evaluation.drift import ordered
from tests.helpers import encoder_laws as laws
from tests.run.test_run import call

refused = partial(laws.refusal, family="torchscript")
GIVEN = {"size": 16, "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]}


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1),
        nn.BatchNorm2d(4),
        nn.Softplus(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def saved(tmp_path, module, trace=False, freeze=False):
    path = tmp_path / "network.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but such files exist
        made = torch.jit.trace(module, torch.rand(1, 3, 16, 16)) if trace else torch.jit.script(module)
        (torch.jit.freeze(made) if freeze else made).save(path)
    return path


@pytest.fixture(params=[False, True], ids=["scripted", "traced"])
def pair(request, tmp_path):
    """A network with some statistics, and the encoder of its file. A scripted file is saved in training mode."""
    module = network()
    module(torch.rand(8, 3, 16, 16))
    path = saved(tmp_path, module.eval() if request.param else module, trace=request.param)
    return module.eval(), load_encoder("torchscript", str(path), preprocess=GIVEN)


def test_the_encoder_equals_preprocessing_and_network(pair):
    module, encoder = pair
    assert not any(m.training for m in encoder.modules())
    assert not any(p.requires_grad for p in encoder.parameters())
    for rows in (1, 3, 2):  # several calls: TorchScript recompiles after profiling
        pictures = torch.rand(rows, 3, 30, 20, requires_grad=True)
        outputs = encoder(pictures), module(encoder.preprocess(pictures))
        torch.testing.assert_close(*outputs)
        weights = torch.randn_like(outputs[0])
        torch.testing.assert_close(*(torch.autograd.grad((a * weights).sum(), pictures)[0] for a in outputs))


def test_a_copy_is_independent_and_gradients_are_exact(pair):
    module, encoder = pair
    pictures = torch.rand(2, 3, 30, 20)
    wide, features = copy.deepcopy(encoder).double(), encoder(pictures)
    expected = copy.deepcopy(module).double()(encoder.preprocess(pictures.double()))
    torch.testing.assert_close(wide(pictures.double()), expected)
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.zero_()
    assert torch.equal(encoder(pictures), features)
    torch.testing.assert_close(prepare(encoder, Decision(layout="channels_last"))(pictures), features)
    laws.assert_gradient_is_exact(encoder)
    assert laws.assert_every_pixel_counts(encoder.preprocess) == 1.0


def test_the_repr_names_the_file_and_layers_take_no_hooks(pair):
    encoder, picture = pair[1], torch.rand(1, 3, 20, 20)
    assert "torchscript:" in repr(encoder) and "to 16x16" in repr(encoder)
    assert len(encoder.origin.digest()) == 64
    assert Layers(encoder, ["output"])(picture)["output"].shape == (1, 5)
    assert [visit.name for visit in visits(encoder, picture)] == ["output"]
    assert "torchscript:" in layer_listing(encoder, picture)
    assert ordered(encoder, ["all"], picture) == {"output": "flat"}
    with pytest.raises(ValueError, match="`layers`: the encoder has no '0'; it has no named layers, only 'output'"):
        Layers(encoder, ["0"])


def test_a_map_of_features_is_flattened(tmp_path):
    path = saved(tmp_path, nn.Conv2d(3, 2, 4, 4))
    assert load_encoder("torchscript", str(path), preprocess=GIVEN)(torch.rand(2, 3, 9, 9)).shape == (2, 2 * 4 * 4)


def test_files_of_another_kind_are_refused(tmp_path):
    path = saved(tmp_path, network())
    refused("network.pt .*give `encoder.preprocess.std`", path, preprocess={"size": 8, "mean": [0, 0, 0]})
    laws.assert_broken_files_are_refused(path, partial(refused, preprocess=GIVEN), "not a TorchScript file")
    for state in ({"bomb": laws.Bomb()}, network().state_dict()):
        torch.save(state, path)
        refused("network.pt is not a TorchScript file.*state_dict needs the network", path, preprocess=GIVEN)
    refused("network.pt .*torch.jit.freeze", saved(tmp_path, network().eval(), freeze=True), preprocess=GIVEN)


def error(monkeypatch, capsys, *arguments):
    """The error line of a command, run in this process."""
    assert call(monkeypatch, *arguments) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


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
    preset, missing = tmp_path / "foreign.yaml", tmp_path / "none.pt"
    preset.write_text("# @package _global_\n" + lines.replace("FILE", str(missing)))
    start = (f"config={preset}", f"hydra.run.dir={tmp_path / 'out'}")
    family, model = "encoder=torchscript", f"encoder.model={missing}"
    for typed in ((), (family,), (model,)) if "override /encoder: torchscript" in lines else ((),):
        assert "a preset may not choose it" in error(monkeypatch, capsys, *start, *typed)
    given = "encoder.preprocess={size: 16, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}"
    assert "none.pt does not exist" in error(monkeypatch, capsys, *start, family, model, given)
