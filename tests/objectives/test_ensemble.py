"""Several encoders at once: an ensemble of one, means and normalised gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, PGD, Away, Linf, Toward, attack
from attacks.data.gallery import tiles
from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.engine.precision import low_pass, make_low
from attacks.encoders.preprocess import Preprocess
from attacks.eot.estimate import Estimate, combine
from attacks.objectives.composite import Ensemble, Members
from attacks.objectives.embedding import Paired
from attacks.objectives.retrieval import Retrieval
from transforms import Affine, Compose

VIEWS = Compose([Affine(degrees=20, scale=(0.8, 1.2))])


class Small(nn.Module):
    """An encoder with its own preprocessing."""

    def __init__(self, seed, size=12, mean=0.5, scale=1.0):
        super().__init__()
        self.preprocess = Preprocess(size, "pil_bilinear", (mean,) * 3, (0.25,) * 3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(6))
            self.body(torch.zeros(1, 3, size, size))
        self.scale = scale
        self.eval().requires_grad_(False)

    def forward(self, images):
        return self.scale * self.body(self.preprocess(images))


@pytest.fixture
def images():
    return tiles(96).spread(3).images[..., :20, :24].contiguous()


@pytest.fixture
def pair():
    return Small(0), Small(1, size=16, mean=0.4)


def final(images, anchor, **parts):
    plain = {"perturbation": Linf(8 / 255), "optimiser": PGD(), "eot": EOT(VIEWS, views=4, chunk=5), "steps": 4}
    *_, step = attack(images, anchor, **plain | parts)
    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "combine"), [(lambda o: o, "losses"), (Paired, "losses"), (lambda o: o, "gradients")]
)
def test_an_ensemble_of_one_is_its_encoder_bit_for_bit(images, pair, wrap, combine):
    encoder = pair[0]
    anchors = encoder(images)
    single_step = final(images, anchors, encoder=encoder, objective=wrap(Away()))
    ours = final(images, (anchors,), encoder=Ensemble([encoder]), objective=wrap(Members(Away(), combine)))
    assert torch.equal(ours.delta, single_step.delta)
    for name in ("mean", "stderr", "value", "grad", "snr"):
        assert torch.equal(getattr(ours.estimate, name), getattr(single_step.estimate, name))


def test_each_member_has_its_own_preprocessing_and_gradients_add_up(images, pair):
    leaf = images.clone().requires_grad_()
    features = Ensemble(pair)(leaf)
    assert all(torch.equal(part, member(images)) for part, member in zip(features, pair, strict=True))
    (ours,) = torch.autograd.grad(sum(part.square().sum() for part in features), leaf)
    gradients = []
    for member in pair:
        (grad,) = torch.autograd.grad(member(leaf).square().sum(), leaf)
        gradients.append(grad)
    torch.testing.assert_close(ours, gradients[0] + gradients[1])
    assert torch.equal(Ensemble(pair)(images, only=1), pair[1](images))


def test_the_loss_is_the_mean_of_the_members_losses(images, pair):
    gallery = torch.randn(5, 6)
    features, anchor = Ensemble(pair)(images), (torch.randn(3, 6), torch.tensor([0, 4, 2]))
    objective = Members((Toward(), Retrieval(gallery)))
    expected = (Toward()(features[0], anchor[0]) + Retrieval(gallery)(features[1], anchor[1])) / 2
    torch.testing.assert_close(objective(features, anchor), expected)
    assert not objective.stationary_at_anchor
    assert Members(Away()).stationary_at_anchor


def test_preprocessing_of_every_member_is_in_full_precision(images, pair):
    make_low(pair[0])
    make_low(pair[1])
    ensemble_results = low_pass(Ensemble(pair), images)
    for member, result in zip(pair, ensemble_results, strict=True):
        assert torch.equal(result, low_pass(in_native_precision(member), images))


# --- normalised gradients ---


def estimates(scales=(1.0, 10.0), snr=(2.0, 5.0), shape=(4, 3, 5, 5)):
    generator = torch.Generator().manual_seed(0)
    result = []
    for scale, ratio in zip(scales, snr, strict=True):
        row = torch.rand(shape[0], dtype=torch.float64, generator=generator)
        grad = scale * torch.randn(*shape, dtype=torch.float64, generator=generator)
        result.append(
            Estimate(
                row, row + 1, torch.full_like(row, ratio), grad, torch.full((len(row),), 8), int(scale) + 3, row + 2
            )
        )
    return result


def test_combined_gradients_have_equal_weights_and_the_mean_length():
    result = estimates()
    norms = [part.grad.flatten(1).abs().sum(1)[:, None, None, None] for part in result]
    expected = sum(part.grad / norm for part, norm in zip(result, norms, strict=True)) / 2 * (sum(norms) / 2)
    ours = combine(result)
    torch.testing.assert_close(ours.grad, expected, rtol=1e-12, atol=0)
    for name in ("mean", "stderr", "value"):
        torch.testing.assert_close(getattr(ours, name), sum(getattr(part, name) for part in result) / 2)
    assert (ours.views.tolist(), ours.chunk) == ([8] * 4, 4)


def test_a_member_without_a_gradient_does_not_change_the_direction():
    dead, alive = estimates((0.0, 1.0))
    grad = combine([dead, alive]).grad
    torch.testing.assert_close(F.normalize(grad.flatten(1)), F.normalize(alive.grad.flatten(1)))
    assert not combine([dead, dead]).grad.any()
    # Of a saturated member: no number could make it as long as the other one.
    tiny = alive._replace(grad=torch.full_like(alive.grad, 1e-44).float())
    grad = combine([tiny, alive._replace(grad=alive.grad.float())]).grad
    torch.testing.assert_close(F.normalize(grad.flatten(1)), F.normalize(alive.grad.flatten(1)).float())


def test_the_snr_is_exact_for_equal_errors():
    (estimate,) = estimates((1.0,), (3.0,))
    torch.testing.assert_close(combine([estimate, estimate, estimate]).snr, estimate.snr)
    assert combine([estimate._replace(snr=torch.full((4,), torch.nan))] * 2).snr.isnan().all()
