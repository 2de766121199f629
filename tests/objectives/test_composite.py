"""An objective for each layer."""

import pytest
import torch
import torch.nn.functional as F

from attacks import Away, Toward
from attacks.objectives.composite import Each


def trees(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(4, d, dtype=torch.float64, generator=generator) for name, d in (("a", 5), ("b", 9))}


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("kind", [Away, Toward])
def test_each_is_the_weighted_mean_of_relative_losses(kind, metric):
    features, anchor = trees(0), trees(1)
    sign = 1 if kind is Away else -1

    def single_loss(name):
        if metric == "cosine":
            return sign * F.cosine_similarity(features[name], anchor[name])
        return -sign * (features[name] - anchor[name]).norm(dim=1) / anchor[name].norm(dim=1)

    objective, scale = Each({"a": 3.0, "b": 1.0}, kind(metric)), {"a": 1e3, "b": 1.0}
    losses = objective(features, anchor)
    torch.testing.assert_close(losses, 0.75 * single_loss("a") + 0.25 * single_loss("b"), rtol=1e-12, atol=0)
    larger = ({name: scale[name] * part for name, part in tree.items()} for tree in (features, anchor))
    torch.testing.assert_close(objective(*larger), losses, rtol=1e-12, atol=0)  # independent of the scale of a layer


def test_each_gradcheck_with_a_zero_anchor_layer():
    anchor = trees(1) | {"b": torch.zeros(4, 9, dtype=torch.float64)}
    objective = Each({"a": 1.0, "b": 1.0}, Away("l2"))

    def loss(a, b):
        return objective({"a": a, "b": b}, anchor)

    assert torch.autograd.gradcheck(loss, [part.requires_grad_() for part in trees(0).values()])


def test_a_missing_layer_is_refused():
    with pytest.raises(ValueError, match="`features` must be a mapping with 'c' in it; got a, b"):
        Each({"c": 1.0}, Away())(trees(0), trees(1))
