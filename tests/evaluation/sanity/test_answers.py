"""What an encoder answers to untouched pictures, and encoders that answer anything at all."""

import pytest
import torch
from torch import nn

from attacks import EOT, PGD, Away, Linf, Toward
from attacks.eot.problem import Problem
from attacks.evaluation.sanity import table
from attacks.evaluation.sanity.battery import LASTS
from attacks.evaluation.sanity.differences import REPEAT_ERROR, REPEATS, repeats
from attacks.evaluation.sanity.questions import SELF_COSINE, SMOOTH_GRADIENT, self_cosine
from tests.helpers.sampling import mostly_slow
from tests.helpers.small import small, smooth
from tests.helpers.solving import examine
from transforms import Affine, Compose


def problem(encoder, objective=Away(), anchor=None):  # noqa: B008
    images = smooth()
    return Problem(images, encoder(images) if anchor is None else anchor, encoder, objective, Linf(0.1))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-3, 1.0, 1e12, 1e30])
def test_an_embedding_without_a_length_in_float32_fails(scale):
    encoder = small()
    check = self_cosine(problem(lambda images: scale * encoder(images)))
    assert check.verdict == ("passed" if 1e-3 <= scale <= 1e12 else "failed"), check


def test_the_anchor_of_another_encoder_fails_and_a_target_is_no_anchor():
    encoder, images = small(), smooth()
    opposite = -encoder(images)
    assert self_cosine(problem(encoder)).figures["anchor"] == pytest.approx(1)
    assert self_cosine(problem(encoder, anchor=opposite)).verdict == "failed"
    assert self_cosine(problem(encoder, Toward(), opposite)).verdict == "passed"


@pytest.mark.parametrize("share", [0.0, 0.1 * REPEAT_ERROR, 10 * REPEAT_ERROR])
def test_an_answer_that_changes_is_named_and_held_still(share):
    encoder, images = small(), smooth()

    def answer(pictures):
        features = encoder(pictures)
        return features + share * features.norm() / features.numel() ** 0.5 * torch.randn_like(features)

    check, repeatable = repeats(answer, images, {})
    assert check.name == REPEATS and check.verdict == ("failed" if share > REPEAT_ERROR else "passed")
    assert share <= REPEAT_ERROR or torch.equal(repeatable(images), repeatable(images))


def test_an_answer_that_nothing_holds_still_is_not_compared():
    encoder, calls = small(), iter(range(100))
    check, repeatable = repeats(lambda pictures: (1 + next(calls)) * encoder(pictures), smooth(), {})
    assert check.verdict == "failed" and repeatable is None


class Saturating(nn.Module):
    """The gradient ends at the border of a small ball round the start."""

    def forward(self, images):
        return torch.cat([images.flatten(1).clamp(0.3, 0.7), torch.ones(len(images), 1)], 1)


HOSTILE = {
    "an index": lambda x: x.flatten(1).argmax(1, keepdim=True),
    "one number": lambda x: x.flatten(1).sum(1),
    "not a number": lambda x: x.flatten(1) / 0,
    "zero": lambda x: 0 * x.flatten(1),
    "changing shape": lambda x: x.flatten(1)[:, : 5 + int(torch.randint(0, 3, ()))],
    "no graph": lambda x: x.flatten(1).detach(),
    "softmax of large logits": lambda x: (1e5 * x.flatten(1)).softmax(1),
    "a sum over the batch": lambda x: x.flatten(1) + x.sum(),
    "another dtype": lambda x: x.flatten(1).double(),
    "one row": lambda x: x.flatten(1)[:1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoder", mostly_slow(HOSTILE.values(), 3), ids=HOSTILE)
def test_no_encoder_ends_the_examination(encoder):
    images = smooth()
    anchor = small()(images) if encoder is HOSTILE["one row"] else encoder(images)
    parts = {"encoder": encoder, "objective": Away(), "perturbation": Linf(0.1), "optimiser": PGD()}
    sanity = examine(images, anchor, **parts, eot=EOT(Compose([Affine(degrees=9)]), views=2), steps=2)
    assert sanity.failed, table(sanity)


def test_a_gradient_that_ends_on_the_way_is_a_failed_check():
    images = 0.35 + 0.3 * smooth()
    parts = {"encoder": Saturating().eval(), "objective": Away(), "perturbation": Linf(0.5), "optimiser": PGD(1.0)}
    sanity = examine(images, Saturating()(images), **parts, eot=EOT(Compose(), views=1), steps=20)
    (check,) = [check for check in sanity.checks if check.name == LASTS]
    assert check.verdict == "failed" and "exactly zero" in check.message, table(sanity)
    assert {check.name for check in sanity.checks} >= {SELF_COSINE, REPEATS, SMOOTH_GRADIENT}
