"""Every classification model of torchvision, the largest too, on torch's device without numbers."""

import pytest
import torch
import torchvision

from attacks.encoders.families.torchvision_models import _ARGUMENTS, _behead, _side, preprocessing

#: A RegNet reckons with numbers while it is built; all are one class, and the small ones run in the other file.
MODELS = [m for m in torchvision.models.list_models(module=torchvision.models) if not m.startswith("regnet")]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model_answers_with_a_row_for_each_picture(model):
    """A head that is found and gone, and the features that it read, (N,D)."""
    preset = torchvision.models.get_model_weights(model).DEFAULT.transforms()
    arguments = _ARGUMENTS.get(model, {}) | _side(model, preprocessing(preset))
    with torch.device("meta"):
        network = torchvision.models.get_model(model, weights=None, **arguments).eval()
        (head,) = [p for p in network.parameters() if p.dim() > 1 and len(p) == 1000]
        _behead(network)
        found = network(torch.empty(2, 3, *preset.crop_size * 2))
    assert not any(len(p) == 1000 for p in network.parameters() if p.dim())
    assert found.shape == (2, head.shape[1])
