"""Deletion and insertion: against a loop in NumPy, and for a linear model."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from attacks.evaluation.explain.deletion import BLOCKS, STEPS, area, blocks, blur, curves, masks, ranks
from attacks.evaluation.explain.saliency import CountedEncoder
from tests.helpers.small import small, smooth


class Bright(nn.Module):
    """(N,3,H,W) -> (N,2): the cosine to (1,0) rises with the weighted sum of the pixels."""

    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, images):
        along = (images * self.weights).sum((1, 2, 3))
        return torch.stack([along, torch.ones_like(along)], 1)


def test_blocks_are_complete_and_of_similar_size():
    for height, width in ((64, 64), (50, 33), (7, 300)):
        sizes = torch.bincount(blocks(height, width).flatten())
        assert len(sizes) == min(BLOCKS, height) * min(BLOCKS, width)
        ceilings = -(-height // min(BLOCKS, height)) * -(-width // min(BLOCKS, width))
        floors = (height // min(BLOCKS, height)) * (width // min(BLOCKS, width))
        assert floors <= int(sizes.min()) and int(sizes.max()) <= ceilings


def test_blocks_are_ranked_by_their_mean_weight():
    weights = torch.rand(50, 33, generator=torch.Generator().manual_seed(0))
    result, index = ranks(weights, 0), blocks(50, 33)
    means = [float(weights[index == block].double().mean()) for block in range(int(index.max()) + 1)]
    for block, mean in enumerate(means):
        (place,) = result[index == block].unique().tolist()
        assert place == sum(other > mean for other in means)


def test_the_seed_decides_ties_of_blocks():
    one, same, other = (ranks(torch.full((32, 32), 0.3), seed) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert sorted(one.unique().tolist()) == list(range(BLOCKS**2))


def test_masks_grow_from_nothing_to_all_in_equal_steps():
    result = masks(ranks(torch.rand(40, 40), 0))
    assert not result[0].any() and result[-1].all() and len(result) == STEPS + 1
    for less, more in pairwise(result):
        assert bool((more | ~less).all()) and more.sum() > less.sum()


@pytest.mark.parametrize("chunk", [3, 100])
def test_curves_equal_a_loop_in_numpy(chunk):
    encoder, picture = small().double(), smooth()[0].double()
    anchor = encoder(picture[None])[0]
    places = ranks(torch.rand(picture.shape[1:], generator=torch.Generator().manual_seed(3)), 0)
    counted = CountedEncoder(encoder)
    result = curves(counted, picture, anchor, {"one": places, "other": places.max() - places}, chunk)
    blurred, count = blur(picture[None])[0].numpy(), int(places.max()) + 1
    for k in range(2):
        line = []
        for step in range(STEPS + 1):
            first = places.numpy() < round(step / STEPS * count)
            mixed = np.where(first, blurred, picture) if k == 0 else np.where(first, picture, blurred)
            features = encoder(torch.from_numpy(mixed)[None])[0].numpy()
            line.append(features @ anchor.numpy() / np.linalg.norm(features) / np.linalg.norm(anchor.numpy()))
        np.testing.assert_allclose(result["one"][k], line, atol=1e-12)
        np.testing.assert_allclose(area(result["one"])[k], np.trapezoid(line, dx=1 / STEPS), atol=1e-12)
    assert counted.forward == 2 + 2 * 2 * (STEPS - 1)  # both ends are shared


def test_the_order_of_a_linear_model_is_steepest_and_monotone():
    weights = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)) + 0.1
    picture = torch.zeros(3, 32, 32)
    picture[:, ::2, ::2] = 1.0  # bright points, which a blur darkens
    gain = (picture - blur(picture[None])[0]) * weights
    encoder = Bright(gain.sign() * weights / weights.sum())
    best = ranks((gain.sign() * weights * (picture - blur(picture[None])[0])).sum(0), 0)
    orders = {"best": best, "worst": best.max() - best, "random": ranks(torch.zeros(32, 32), 0)}
    result = curves(CountedEncoder(encoder), picture, torch.tensor([1.0, 0.0]), orders, 64)
    for deletion, insertion in result.values():
        assert bool((deletion.diff() < 0).all()) and bool((insertion.diff() > 0).all())
    deletion, insertion = (torch.stack([area(result[order])[i] for order in orders]) for i in (0, 1))
    assert deletion[0] < deletion[2] < deletion[1]
    assert insertion[0] > insertion[2] > insertion[1]


def test_the_blur_keeps_the_mean_colour_and_removes_detail():
    noise = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(blur(torch.full((1, 3, 64, 48), 0.25)), torch.full((1, 3, 64, 48), 0.25))
    assert float(blur(noise).std()) < 0.1 * float(noise.std())
