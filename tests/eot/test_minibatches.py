"""Minibatches of a shared perturbation: what they cost, and that they lead where all pictures lead."""

import pytest
import torch

from attacks import APGD, EOT, PGD, Linf, Universal, attack, solve
from attacks.eot.adaptive import Adaptive
from attacks.eot.minibatches import Minibatches
from attacks.eot.problem import Options, problem_for
from attacks.optimisers.square import Square
from tests.helpers.solving import VIEWS, small_problem
from transforms import Compose

SHARED = Universal(Linf(0.1))


class Reads:
    """Pictures by rows, and how many rows each reading took."""

    def __init__(self, images):
        self.images, self.sizes = images, []

    def __len__(self):
        return len(self.images)

    def read(self, rows):
        self.sizes.append(len(rows))
        return self.images[list(rows)]


def setting(count=6, **words):
    images, anchor, parts = small_problem(count)
    return images, anchor, parts | {"perturbation": SHARED} | words


@pytest.mark.parametrize(("count", "size"), [(6, 2), (6, 4), (5, 3)])
def test_whole_epochs_have_the_gradient_of_all_pictures_as_their_mean(count, size):
    images, anchor, parts = setting(count)
    eot, seed = EOT(Compose(), views=1, pictures=size), parts.pop("seed")
    options = Options(parts.pop("optimiser"), eot, seed=seed)
    batches = problem_for(images, anchor, options=options, **parts)
    full = problem_for(images, anchor, options=Options(PGD(), EOT()), **parts)
    delta, no_points = SHARED.noise(images, torch.Generator().manual_seed(0)), images.new_zeros(1, 0)
    estimates = [eot.estimate(batches.minibatch(seed, k), delta, no_points) for k in range(count)]  # `size` epochs
    mean = torch.stack([estimate.grad for estimate in estimates]).mean(0)
    torch.testing.assert_close(mean, eot.estimate(full, delta, no_points).grad, rtol=1e-12, atol=1e-15)
    assert max((estimate.grad - mean).norm() for estimate in estimates) > 0.1 * mean.norm()


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 3), (8, 4), (5, 5)])
def test_every_epoch_deals_out_each_picture_once_in_another_order(count, size):
    parts = Minibatches(torch.zeros(count, 1, 1, 1), torch.zeros(count, 1), SHARED, size, torch.device("cpu"))
    rows = torch.cat([parts.rows(3, step) for step in range(4 * count)])
    epochs = rows.view(-1, count)
    assert torch.equal(epochs.sort(1).values, torch.arange(count).expand_as(epochs))
    assert count == 1 or not torch.equal(rows, torch.cat([parts.rows(4, step) for step in range(4 * count)]))
    assert count < 5 or len(epochs.unique(dim=0)) > 1


def test_minibatches_are_read_alone_and_all_pictures_at_once_are_the_plain_attack():
    images, anchor, parts = setting(7)
    reads = Reads(images)
    steps = [*attack(reads, anchor, eot=EOT(VIEWS, views=2, pictures=3), steps=5, **parts)]
    other = [*attack(images, anchor, eot=EOT(VIEWS, views=2, pictures=3), steps=5, **parts)]
    assert {*reads.sizes} == {3} and [step.evals for step in steps] == [6, 12, 18, 24, 30]
    assert all(torch.equal(a.delta, b.delta) for a, b in zip(steps, other, strict=True))
    plain = solve(images, anchor, eot=EOT(VIEWS, views=2), steps=5, **parts)
    for source, size in ((images, 7), (images, 9), (reads, None)):
        best = solve(source, anchor, eot=EOT(VIEWS, views=2, pictures=size), steps=5, **parts)
        assert torch.equal(best.delta, plain.delta) and torch.equal(best.loss, plain.loss)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"perturbation": Linf(0.1)}, "needs a perturbation that images share"),
        ({"optimiser": APGD()}, "APGD"),
        ({"optimiser": Square()}, "Square"),
        ({"adaptive": Adaptive(), "budget": 99}, "`adaptive`"),
        ({"budget": torch.full((6,), 99)}, "`budget`"),
        ({"anchor": torch.zeros(5, 6)}, "one row per image"),
        ({"images": Reads(2 * torch.ones(6, 3, 12, 14))}, r"in \[0, 1\]"),
    ],
)
def test_what_minibatches_cannot_do_is_refused(words, message):
    images, anchor, parts = setting()
    words = {"images": images, "anchor": anchor, "eot": EOT(VIEWS, views=2, pictures=2), "steps": 2} | parts | words
    with pytest.raises(ValueError, match=message) as error:
        [*attack(**words)]
    assert "\n" not in str(error.value)
