"""An encoder with active dropout: the dropped units depend only on the coordinate of the view; attacks on it."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.ops import StochasticDepth

from attacks import EOT, PGD, Away, Ensemble, Linf, attack, bank
from attacks.encoders import Layers, Stochastic
from attacks.encoders.features import Features
from attacks.encoders.randomness import encoder_draws, encoder_randomness, randomised
from attacks.encoders.stochastic import draws_by_view
from attacks.evaluation.scores import mean_embedding
from attacks.objectives import Members, Paired
from attacks.solvers import Adversary
from tests.helpers import encoder_laws as laws
from tests.helpers.fellows import together
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import estimate, examine, uphill
from tests.helpers.wrong import refused
from transforms import Affine, Compose, Sobol
from transforms.compose import view
from transforms.draws import stream
from transforms.scene import scene_of

double = torch.float64


class DropPath(nn.Module):
    """As in timm: a row is dropped, or scaled up."""

    drop_prob = 0.4

    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty(len(x), *(1,) * (x.dim() - 1)).bernoulli_(0.6).div_(0.6)


class PatchDropout(nn.Module):
    """As in timm: some of the tokens, in a random order."""

    prob = 0.5

    def forward(self, x):
        if not self.training:
            return x
        indices = torch.randn(len(x), x.shape[1], device=x.device).argsort(1)[:, :3]
        return x.gather(1, indices[..., None].expand(-1, -1, x.shape[2])).repeat(1, 2, 1)


class Attention(nn.Module):
    """As in timm: it drops weights if the module itself is in training mode."""

    def __init__(self):
        super().__init__()
        self.attn_drop = nn.Dropout(0.3)

    def forward(self, x):
        x, p = x[:, None], self.attn_drop.p if self.training else 0.0
        return F.scaled_dot_product_attention(x, x, x, dropout_p=p)[:, 0]


class TorchAttention(nn.Module):
    """Attention of torch, with or without its weights as output."""

    def __init__(self, weights):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), weights

    def forward(self, x):
        return self.inner(x, x, x, need_weights=self.weights)[0]


class DropNoise(nn.Module):
    """Other random operations."""

    p = 0.1

    def forward(self, x):
        if not self.training:
            return x
        noise = torch.rand_like(x) + torch.randn_like(x) + torch.rand(x.shape, dtype=x.dtype, device=x.device)
        noise = noise + torch.empty_like(x).uniform_(1, 2) + torch.empty_like(x).normal_(1, 2)
        return x + noise + torch.bernoulli(torch.full_like(x, 0.5)) + torch.native_dropout(x, 0.5, True)[0]


KINDS = {
    "dropout": lambda: nn.Dropout(0.3),
    "dropout1d": lambda: nn.Dropout1d(0.3),
    "alpha": lambda: nn.AlphaDropout(0.3),
    "drop path": DropPath,
    "patch dropout": PatchDropout,
    "stochastic depth": lambda: StochasticDepth(0.4, "row"),
    "attention": Attention,
    "torch attention": lambda: TorchAttention(False),
    "torch attention, weights": lambda: TorchAttention(True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "noise": DropNoise,
}


class Tokens(nn.Module):
    """Pictures (N,3,8,16) to six tokens of eight numbers, then a layer, then flattened."""

    def __init__(self, layer, dtype=double):
        super().__init__()
        self.first, self.layer = nn.Conv2d(3, 8, (4, 5), (4, 5)), layer
        self.to(dtype).eval().requires_grad_(False)

    def forward(self, images):
        return self.layer(self.first(images).flatten(2).mT).flatten(1).tanh()


def plain(dtype=torch.float32, p=0.3):
    """A small smooth encoder for pictures (N,3,12,14)."""
    layers = [nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.Tanh(), nn.Dropout2d(p), nn.Flatten(), nn.Dropout(p)]
    net = nn.Sequential(*layers, nn.Linear(6 * 5 * 6, 8)).to(dtype)
    net[1].running_mean.normal_()
    return net.eval().requires_grad_(False)


def pictures(n=3, dtype=double, size=(8, 16)):
    return 0.1 + 0.8 * torch.rand(n, 3, *size, dtype=dtype)


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_row_depends_only_on_its_picture_and_coordinate(kind):
    encoder, images, w = Stochastic(Tokens(KINDS[kind]())), pictures(6), torch.rand(6, 1)
    output, state = encoder(images, draws=w), torch.get_rng_state()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(encoder(images[order], draws=w[order]), output[order], rtol=1e-12, atol=1e-12)
    for size in (1, 2, 4):
        parts = [encoder(a, draws=b) for a, b in zip(images.split(size), w.split(size), strict=True)]
        torch.testing.assert_close(torch.cat(parts), output, rtol=1e-12, atol=1e-12)
    assert torch.equal(encoder(images, draws=w), output)
    assert torch.equal(torch.get_rng_state(), state), "the global RNG state is unchanged"
    with torch.enable_grad():  # fused kernels without a gradient would leave the dropout out
        features = encoder(images.clone().requires_grad_(), draws=w)
    torch.testing.assert_close(features.detach(), output, rtol=1e-12, atol=1e-12)


@every_kind
def test_only_draws_change_the_encoder(kind):
    network, images = Tokens(KINDS[kind]()), pictures()
    encoder = Stochastic(network)
    first, second = (encoder(images, draws=torch.full((3, 1), at)) for at in (0.25, 0.75))
    assert torch.equal(encoder(images), network(images))
    assert not network.training and not any(module.training for module in encoder.modules())
    for a, b in ((first, second), (first, encoder(images))):
        assert ((a - b).norm(dim=1) > 1e-3).any()
    rows = encoder(images[:1].expand(4, -1, -1, -1), draws=torch.arange(4)[:, None] / 4)
    assert len(rows.unique(dim=0)) > 1, "rows have different dropout masks"


@every_kind
def test_gradcheck_at_fixed_draws(kind):
    encoder, w = Stochastic(Tokens(KINDS[kind]())), torch.rand(2, 1)
    laws.assert_slope(lambda images: encoder(images, draws=w), pictures(2))


def test_dropout_is_unbiased_and_has_its_rate():
    linear = nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(3 * 8 * 16, 5)).double().eval()
    encoder, image = Stochastic(linear), pictures(1)
    samples = encoder(image.expand(4096, -1, -1, -1), draws=Sobol()(4096, 1, seed=0))
    off = (samples.mean(0) - linear(image)[0]) / (samples.std(0) / 4096**0.5)
    assert off.abs().max() < 4.5
    dropout = Stochastic(nn.Sequential(nn.Dropout(0.4)).eval())
    output = dropout(torch.ones(64, 3, 8, 16), draws=Sobol()(64, 1, seed=0))
    assert output.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert float((output > 0).double().mean()) == pytest.approx(0.6, abs=0.01)


def test_concurrent_passes_change_no_modes_and_no_buffers():
    encoder, images, w = Stochastic(plain(torch.float64)), pictures(3, size=(12, 14)), torch.rand(3, 1)
    calls, equal = [{"draws": w}, {}] * 2, []
    state = copy.deepcopy(encoder.state_dict())
    expected = [encoder(images, **call) for call in calls]

    def work(i):
        for _ in range(50):
            equal.append(torch.allclose(encoder(images, **calls[i]), expected[i]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert equal == [True] * 200 and not any(module.training for module in encoder.modules())
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())


def lone(layer):
    return nn.Sequential(layer).eval()


class DropOrder(nn.Module):
    p = 0.5

    def forward(self, x):
        return x[torch.randperm(len(x))]


class DropBlock(nn.Module):
    """As in timm: the remaining units are scaled by the share remaining in the whole batch."""

    p = 0.5

    def forward(self, x):
        rows = torch.full_like(x[..., :1], 0.5)
        mask = torch.bernoulli(rows) if self.training else rows
        return (x * mask / mask.mean()).flatten(1)


class SequenceFirst(nn.Module):
    """(N,3,H,W) to (H,N,...): its dropout sees no leading axis of pictures."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x.permute(2, 0, 1, 3)).permute(1, 2, 0, 3).flatten(1)


class OnlySmall(nn.Module):
    def forward(self, x):
        if x.shape[2:] != (8, 16):
            raise ValueError("pictures must be 8x16")
        return x


def test_a_trial_does_not_fix_the_feature_size():
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Dropout(), nn.Flatten()).eval()
    encoder = Stochastic(Features(network, ["0"]))  # the feature size depends on the picture size
    draws_by_view(encoder)
    assert encoder(pictures(2, torch.float32), draws=torch.rand(2, 1)).shape == (2, 2 * 8 * 16)


def test_draws_that_cannot_be_assigned_to_views_are_refused():
    images, w = pictures(4), torch.rand(4, 1)
    refused("no layer that drops", Stochastic, lone(nn.Dropout(0.0)))
    refused("training mode", Stochastic, lone(nn.Dropout()).train())
    refused("not the batch", lambda: Stochastic(lone(StochasticDepth(0.5, "batch")))(images, draws=w))
    refused("randperm", lambda: Stochastic(lone(DropOrder()))(images, draws=w))
    with pytest.raises(ValueError, match="not the batch"):
        Stochastic(SequenceFirst().eval())  # 64 rows could be 32 for each of 2 pictures, but not for 3
    small_only = Stochastic(nn.Sequential(OnlySmall(), SequenceFirst()).eval())  # cannot be tried
    small_only(images, draws=w)  # 8 rows for 4 pictures could be two for each ...
    with pytest.raises(ValueError, match="not the batch"):
        small_only(images[:2], draws=w[:2])  # ... but not 8 for 2
    refused(r"other pictures in its batch.*DropBlock2d", lambda: draws_by_view(Stochastic(DropBlock().eval())))
    draws_by_view(
        Stochastic(nn.Sequential(nn.AdaptiveAvgPool2d((8, 16)), Tokens(nn.Dropout(), torch.float32)).eval())
    )
    for bad in (torch.rand(4, 2), torch.rand(3, 1), torch.rand(4)):
        refused("`draws` must hold 1 coordinates", Stochastic(lone(nn.Dropout())), images, draws=bad)


@pytest.mark.gpu
@every_kind
def test_gpu_and_cpu_drop_the_same_units(kind):
    encoder, images, w = Stochastic(Tokens(KINDS[kind]())), pictures(6), torch.rand(6, 1)
    cpu_features = encoder(images, draws=w)
    gpu_features = encoder.to("cuda")(images.cuda(), draws=w.cuda())
    torch.testing.assert_close(gpu_features.cpu(), cpu_features, rtol=1e-9, atol=1e-9)


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
