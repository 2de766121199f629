"""Attacks on an encoder with active dropout: its draws are coordinates of the views."""

import pytest
import torch
import torch.nn.functional as F

from attacks import EOT, PGD, Away, Ensemble, Linf, attack, bank
from attacks.encoders import Layers, Stochastic
from attacks.encoders.randomness import encoder_draws, encoder_randomness, randomised
from attacks.evaluation.scores import mean_embedding
from attacks.objectives import Members, Paired
from attacks.solvers import Adversary
from tests.helpers.dropping import double, pictures, plain
from tests.helpers.fellows import together
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import estimate, examine, uphill
from transforms import Affine, Compose
from transforms.compose import view
from transforms.draws import stream
from transforms.scene import scene_of

CAMERA = Compose([Affine(degrees=15, scale=(0.8, 1.2))])


@pytest.mark.parametrize("shared", [False, True])
def test_an_estimate_is_the_same_in_any_chunks_and_on_any_number_of_processes(shared):
    encoder, images = Stochastic(plain(double)), 0.2 + 0.6 * pictures(3, size=(12, 14))
    camera, anchor = randomised(CAMERA, encoder), encoder(images)
    delta = 0.05 * torch.randn_like(images[:1] if shared else images)

    def step(world, chunk):
        eot = EOT(camera, views=8, chunk=chunk)

        def loss(pixels, rows, draws):
            return F.cosine_similarity(encoder(pixels, draws=draws), anchor[rows], dim=1)

        def scene(part, rows):
            return scene_of(images[rows] + part)

        return estimate(eot, delta, scene, loss, eot.points(0, 0, images), count=3, world=world)

    estimates = [estimate_ for size in (1, 2, 3) for estimate_ in together(size, lambda world: step(world, 24))]
    estimates += [together(1, lambda world, c=chunk: step(world, c))[0] for chunk in (1, 3, 7)]
    for other in estimates[1:]:
        torch.testing.assert_close(other.grad, estimates[0].grad, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(other.mean, estimates[0].mean)


class Spy(Stochastic):
    """Counts the pictures that it has seen without draws."""

    bare = 0

    def forward(self, images, draws=None, **options):
        self.bare += len(images) * (draws is None)
        return super().forward(images, draws=draws, **options)


def setup(encoder, **changes):
    parts = {
        "encoder": encoder,
        "objective": Away(),
        "perturbation": Linf(0.1),
        "optimiser": PGD(),
        "eot": EOT(randomised(CAMERA, encoder), views=4, chunk=6),
        "steps": 4,
    }
    return parts | changes


@pytest.mark.parametrize(
    "changes", mostly_slow([{"objective": Paired(Away())}, {}, {"adversary": Adversary(8, 1)}], 3), ids=str
)
def test_attacks_and_evaluation_pass_draws_with_every_view(changes):
    encoder, images = Spy(plain()), pictures(2, torch.float32, (12, 14))
    anchor, parts = encoder(images), setup(encoder, **changes)
    encoder.bare = 0
    *_, step = attack(images, anchor, **parts)
    views = bank(parts["eot"].transforms, 8, seed=0, purpose="evaluate")
    arguments = (images + step.delta, anchor, encoder, parts["objective"], 5)
    losses = views.losses(*arguments, untouched=images)
    views.features(images, encoder, 5)
    mean_embedding(images, encoder, views, 5)
    parts = {"encoder": encoder, "objective": parts["objective"], "views": views, "losses": losses}
    worst = uphill(images + step.delta, anchor, **parts, refine_steps=2, untouched=images)
    assert not encoder.bare
    assert set(worst.u[..., -1].flatten().tolist()) <= set(views.u[:, -1].tolist()), "seeds are not optimised"


def test_equal_seeds_give_equal_bits_and_evaluation_has_its_own_draws():
    encoder, images = Stochastic(plain()), pictures(2, torch.float32, (12, 14))
    parts = setup(encoder)
    first, second = ([step.delta for step in attack(images, encoder(images), **parts)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    camera = parts["eot"].transforms
    attack_seeds = {
        float(w) for step in range(40) for w in parts["eot"].points(stream(0, "attack"), step, images)[:, -1]
    }
    bank_seeds = bank(camera, 512, seed=0, purpose="evaluate").u[:, -1].tolist()
    assert len(attack_seeds) == 160 and len(set(bank_seeds)) == 512 and not attack_seeds & set(bank_seeds)
    assert camera.names[-1] == "encoder dropout (seed)" and camera.dims - 1 in camera.discrete


@pytest.mark.slow
def test_layers_and_ensembles_pass_the_draws_on():
    first, second, plain_encoder = Stochastic(plain()), Stochastic(plain()), plain()
    images, w = pictures(3, torch.float32, (12, 14)), torch.rand(3, 2)
    ensemble = Ensemble([first, plain_encoder, second])
    assert ensemble.randomness.names == ("dropout1 (seed)", "dropout2 (seed)")
    expected = first(images, draws=w[:, :1]), plain_encoder(images), second(images, draws=w[:, 1:])
    for i, (a, b) in enumerate(zip(ensemble(images, draws=w), expected, strict=True)):
        assert torch.equal(a, b) and torch.equal(ensemble(images, only=i, draws=w), b)
    with Layers(first, ["4", "output"]) as layers:
        features = layers(images, draws=w[:, :1])
        assert torch.equal(features["output"], expected[0]) and encoder_randomness(layers).dims == 1
        assert not torch.equal(features["4"], layers(images)["4"])
    for combine in ("losses", "gradients"):
        parts = setup(ensemble, objective=Members(Away(), combine), steps=2)
        assert len(list(attack(images, ensemble(images), **parts))) == 2


@pytest.mark.slow
def test_the_sanity_checks_use_the_same_draws():
    encoder, images = Stochastic(plain(p=0.1)), pictures(2, torch.float32, (12, 14))
    examination = examine(images, encoder(images), **setup(encoder))
    verdicts = {check.name: check.verdict for check in examination.checks}
    assert verdicts["finite differences"] == verdicts["active test"] == "passed", examination


def test_encoder_draws_are_coordinates_and_do_not_change_the_pictures():
    encoder, images, plain_encoder = Stochastic(plain()), pictures(2, torch.float32, (12, 14)), plain()
    camera, u = randomised(CAMERA, encoder), torch.rand(3, CAMERA.dims + 1)
    assert randomised(CAMERA, plain_encoder) is CAMERA and encoder_draws(CAMERA, u[:, :-1]) == {}
    assert torch.equal(encoder_draws(camera, u)["draws"], u[:, -1:])
    assert torch.equal(view(camera, scene_of(images), u), view(CAMERA, scene_of(images), u[:, :-1]))
