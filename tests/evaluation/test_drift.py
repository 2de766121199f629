"""The drift of the features: encoders that flip at a known layer, and the line of a run."""

import json

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import nn

from attacks import bank, evaluate, load_encoder
from attacks.data.gallery import tiles
from attacks.encoders.phash import Phash, bits
from attacks.evaluation import layer_drift
from attacks.evaluation.clusters import Sample
from attacks.evaluation.drift import Drift, drift_summary, layer_order, line
from tests.helpers import report_pages
from tests.helpers.fellows import together
from tests.helpers.runs import call
from transforms import Affine, Compose

CLUSTERS = list("abc")
VIEWS = bank(Compose([Affine(degrees=20)]), 6, seed=0, purpose="test")


@pytest.fixture(scope="module")
def pictures():
    """Three pictures: untouched, a little noisy, and with stripes over them."""
    clean = tiles(32).spread(3).images
    noise = 0.02 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    stripes = 0.1 * torch.tensor([1.0, -1.0]).repeat(16).expand_as(clean)
    return clean, {"noise": (clean + noise).clamp(0, 1), "eot": (clean + stripes).clamp(0, 1)}


class Flip(nn.Module):
    """Negates rows displaced along `way` by more than noise."""

    def __init__(self, way):
        super().__init__()
        self.register_buffer("way", way)

    def forward(self, rows):
        return torch.where(rows @ self.way[:, None] > 0.03, -rows, rows)


def flip(result, clusters):
    """The layer where an embedding flips, from the rows of its drift."""
    names = tuple(f"{i}" for i in range(len(clusters)))
    return drift_summary(result.rows(Sample(torch.arange(len(names)), names, tuple(clusters))))["flips"]


def flipping(at, count=5):
    """Orthogonal maps, except that layer `at` negates striped pictures."""
    layers, way = [nn.Linear(96, 96, bias=False) for _ in range(count)], torch.tensor([1.0, -1.0]).repeat(48) / 48
    for i, layer in enumerate(layers):
        nn.init.orthogonal_(layer.requires_grad_(False).weight, generator=torch.Generator().manual_seed(i))
    for layer in layers[:at]:
        way = layer(way)
    layers[at] = Flip(way)
    return nn.Sequential(nn.AdaptiveAvgPool2d((1, 32)), nn.Flatten(), *layers).eval()


def test_equal_pictures_have_cosine_one_in_every_layer(pictures):
    clean, _ = pictures
    result = layer_drift(load_encoder(), clean, {"noise": clean, "eot": clean}, VIEWS)
    assert len(result.layers) > 10
    for cosine in result.cosine.values():
        torch.testing.assert_close(cosine, torch.ones(len(result.layers), 3, 6), rtol=0, atol=1e-5)
    assert flip(result, CLUSTERS) is None


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_the_layer_that_flips_is_found(pictures, at):
    clean, attacked_arms = pictures
    fixed_views = bank(Compose(), 2, seed=0, purpose="test")
    result = layer_drift(flipping(at), clean, attacked_arms, fixed_views, [str(i) for i in range(7)])
    assert flip(result, CLUSTERS) == str(at + 2)
    drift = 1 - result.cosine["eot"].mean((1, 2))
    assert (drift[: at + 2] < 0.1).all() and (drift[at + 2 :] > 1.5).all()


def test_neither_the_drift_of_noise_nor_a_stable_output_is_a_flip(pictures):
    clean, attacked_arms = pictures
    equal = dict.fromkeys(("noise", "eot"), attacked_arms["eot"])
    assert flip(layer_drift(flipping(2), clean, equal, VIEWS), CLUSTERS) is None
    result = layer_drift(flipping(2), clean, {"noise": clean, "eot": attacked_arms["noise"]}, VIEWS)
    assert (result.cosine["eot"][-1] < 1).all() and flip(result, CLUSTERS) is None


@pytest.mark.parametrize("seed", range(12))
def test_a_flip_is_significant_over_clusters(seed):
    # The output drifts with EOT; whether more than with noise differs from cluster to cluster.
    draw = np.random.default_rng(seed)
    clusters = [name for name in "abcdefgh" for _ in range(draw.integers(1, 4))]
    units = dict(zip("abcdefgh", draw.normal(0.3, 0.35, 8).clip(-0.01, 1.9), strict=True))
    first = 0.02 + torch.tensor([units[name] for name in clusters])[None, :, None].expand(1, -1, 4)
    result = Drift(("output",), {"eot": 1 - first, "noise": torch.full(first.shape, 0.98)}, 0, 0.0)
    test = scipy.stats.permutation_test(([*units.values()],), np.mean, permutation_type="samples", n_resamples=np.inf)
    significant = test.statistic > 0.08 and test.pvalue < 0.05  # 0.02 more, and the least drift of a flip
    assert flip(result, clusters) == ("output" if significant else None)


@pytest.mark.parametrize("encoder", [load_encoder(), Phash()], ids=["pocket", "phash"])
def test_the_row_of_the_output_equals_the_scores_of_paired_views(pictures, encoder):
    clean, attacked_arms = pictures
    result = layer_drift(encoder, clean, attacked_arms, VIEWS, ["output"]).cosine["eot"][0]
    for i, u in enumerate(VIEWS.u):
        single = VIEWS._replace(u=u[None])
        first = single.features(clean, encoder, 1)[:, 0]
        scores = evaluate(attacked_arms["eot"], first, first, encoder=encoder, bank=single)
        torch.testing.assert_close(result[:, i], scores.cosine[:, 0], rtol=0, atol=1e-5)
    if isinstance(encoder, Phash):
        first, other = (VIEWS.features(images, encoder, 6) for images in (clean, attacked_arms["eot"]))
        torch.testing.assert_close(result, 1 - 2 * (bits(first) != bits(other)).double().mean(2).float())


def test_the_cosines_equal_those_of_directly_computed_features(pictures):
    clean, attacked_arms = pictures
    encoder = load_encoder()
    stem = nn.Sequential(encoder.stem).eval()
    result = layer_drift(encoder, clean, attacked_arms, VIEWS, ["stem", "stages.2:mean"])
    assert result.layers == ("stem", "stages.2:mean", "output")
    flat = lambda views: stem(encoder.preprocess(views)).flatten(1)  # noqa: E731
    first, other = (VIEWS.features(x, flat, 6) for x in (clean, attacked_arms["eot"]))
    expected = F.cosine_similarity(first.flatten(2), other.flatten(2), dim=2)
    torch.testing.assert_close(result.cosine["eot"][0], expected)


@pytest.mark.slow
def test_chunks_and_processes_change_only_the_last_digits(pictures):
    clean, attacked_arms = pictures
    encoder = load_encoder()
    drift = layer_drift(encoder, clean, attacked_arms, VIEWS)
    small = layer_drift(encoder, clean, attacked_arms, VIEWS, chunk=1)
    shares = together(4, lambda world: layer_drift(load_encoder(), clean, attacked_arms, VIEWS, world=world))
    for arm, cosine in drift.cosine.items():
        torch.testing.assert_close(small.cosine[arm], cosine, rtol=0, atol=1e-5)
        for share in shares:
            torch.testing.assert_close(share.cosine[arm], cosine, rtol=0, atol=1e-5)
    assert drift.forward == small.forward == 3 * 3 * 6  # untouched and two arms, pictures, views


class Long(nn.Sequential):
    def __init__(self, count, wide):
        layers = [nn.Conv2d(3, 3, 1) for _ in range(count)]
        super().__init__(nn.Sequential(*layers) if wide else nn.Sequential(nn.Sequential(*layers)), nn.Flatten())
        self.eval()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("count", [3, 20, 60])
def test_all_selects_at_most_24_layers_in_order(count, wide):
    pools = layer_order(Long(count, wide), ["all"], torch.rand(1, 3, 8, 8))
    names = list(pools)
    assert names[-1] == "output" and 3 <= len(names) <= 25
    numbers = [int(name.rpartition(".")[2]) for name in names[:-1] if name.startswith("0.")]
    assert numbers == sorted(numbers) and (count < 10 or len(numbers) > 10)
    assert "0" in names and "1" not in names  # the container stands for its last layer, the output for the flattening


class PositionEmbedding(nn.Module):
    """Adds a position embedding, computed once for all pictures, as a transformer does."""

    def __init__(self):
        super().__init__()
        self.body, self.places = nn.Flatten(), nn.Embedding(96, 1)

    def forward(self, images):
        rows = self.body(images)
        return rows + self.places(torch.arange(rows.shape[1])[None] % 96)[:, :, 0]


def test_a_module_without_a_row_per_picture_is_not_a_layer(pictures):
    encoder, (clean, attacked_arms) = PositionEmbedding().eval(), pictures
    assert list(layer_order(encoder, ["all"], clean[:1])) == ["body", "output"]
    layer_drift(encoder, clean, attacked_arms, VIEWS)
    with pytest.raises(ValueError, match="layer `places` must answer with a row for each"):
        layer_order(encoder, ["places"], clean[:1])


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["stemm"], "`evaluate.layers`: the encoder has no 'stemm'; did you mean stem"),
        (["all", "stem"], "`evaluate.layers`: the encoder has no 'all'"),
        (["stem:cls"], "layer `stem` has places"),
    ],
)
def test_unknown_layers_are_refused(layers, message, pictures):
    with pytest.raises(ValueError, match=message):
        layer_order(load_encoder(), layers, pictures[0][:1])


def test_a_line_says_where_the_embedding_flips():
    content = report_pages.drift()
    text = f"drift over {len(content['layers'])} layers: the embedding flips"
    row = next(row for row in content["layers"] if row["layer"] == content["flips"])
    assert line(content).startswith(f"{text} at {row['layer']} (cosine eot {row['eot']['mean']:.3f}, noise ")
    assert line(content | {"flips": None}).startswith(f"{text} nowhere (cosine of the output eot ")


@pytest.mark.slow
def test_a_run_reports_its_drift(monkeypatch, capsys, tmp_path):
    short = ["config=smoke", "data.count=1", "attack.steps=16", "evaluate.views=4", f"hydra.run.dir={tmp_path}"]
    assert call(monkeypatch, *short, "evaluate.layers=all") == 0
    drift = json.loads((tmp_path / "metrics.json").read_text())["drift"]
    assert drift["views"] == 4 and drift["cost"]["forward"] == 5 * 1 * 4
    assert all(row["eot"]["mean"] < row["noise"]["mean"] for row in drift["layers"])
    assert (tmp_path / "report.html").read_text().count('<th scope="row">stages.5</th>') == 1
    text = f"drift over {len(drift['layers'])} layers: the embedding flips at {drift['flips']} (cosine eot "
    assert text in capsys.readouterr().out
