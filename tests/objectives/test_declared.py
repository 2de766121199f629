"""A law of every objective that declares its own keys."""

import inspect

import pytest
import torch

from attacks.schema.groups import DECLARED
from attacks.study.make import declared_class


@pytest.mark.parametrize("name", DECLARED["objective"])
def test_a_declared_objective_states_whether_its_gradient_vanishes_at_the_anchor(name):
    part = declared_class("objective", name)
    gallery = torch.randn(6, 32, dtype=torch.float64)
    has_gallery = "gallery" in inspect.signature(part).parameters
    objective = part(gallery=gallery) if has_gallery else part()
    features = gallery[:4].clone().requires_grad_()
    objective(features, torch.arange(4) if has_gallery else gallery[:4]).sum().backward()
    assert bool((features.grad.norm(dim=1) < 1e-9).all()) is objective.stationary_at_anchor
