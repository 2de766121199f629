"""Defences over several views: each rule against its formula in NumPy, and the laws of all of them."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import load_encoder, tiles
from attacks.encoders import Counterattack, Layers, Panel, Stochastic
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.passes import CountedCalls, PassCount, passes_of
from attacks.encoders.rules import (
    DirectionalBias,
    GeodesicStep,
    ReliabilityVote,
    SmoothedFeatures,
    ViewConsistency,
    ViewMean,
)
from attacks.objectives.composite import Ensemble
from attacks.verification.judgement import slack_of
from tests.helpers.slopes import assert_slope
from tests.helpers.small import small, smooth
from transforms import Compose
from transforms.camera import SensorNoise
from transforms.geometry import Crop, Flip

STAGES = [Crop((0.6, 1.0)), Flip(0.5), SensorNoise((0.02, 0.02))]
RULES = [ViewMean(), SmoothedFeatures(), ReliabilityVote(0.1, 0.5), GeodesicStep(), ViewConsistency()]
RULES += [DirectionalBias(threshold=-1.0), DirectionalBias(threshold=1.0), DirectionalBias(threshold=0.2, share=0.5)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(RULES.index(rule)) + type(rule).__name__)


def network():
    return small().double()


def defences():
    """A defence of each kind, in float64."""
    panels = [Panel(network(), rule, STAGES, views=4) for rule in RULES]
    return [*panels, *(Counterattack(network(), threshold=share) for share in (0.0, torch.inf))]


def unit(vector):
    return vector / np.linalg.norm(vector)


def vote(rule, units):
    """The weight of each view is the softmax of its mean cosine to the nearest of the others."""
    count, ratings = max(1, round(rule.share * (len(units) - 1))), []
    for i, row in enumerate(units):
        cosines = sorted((row @ other for j, other in enumerate(units) if j != i), reverse=True)
        ratings.append(np.mean(cosines[:count]) / rule.temperature)
    weights = np.exp(np.array(ratings) - max(ratings))
    return weights / weights.sum() @ units


def bias(rule, units, features):
    """Of the surest views the mean drift, added `gain` times where the drifts are alike."""
    probabilities = [np.exp(row) / np.exp(row).sum() for row in features[1:]]
    entropies = [-(p * np.log(p)).sum() for p in probabilities]
    surest = np.argsort(entropies)[: max(1, round(rule.share * len(entropies)))]
    drifts = np.array([units[1 + i] - units[0] for i in surest])
    mean = drifts.mean(0)
    agrees = np.mean([unit(drift) @ unit(mean) for drift in drifts]) > rule.threshold
    return units[0] + (rule.gain if agrees else 1.0) * mean


def geodesic(rule, units):
    """Spherical interpolation from the picture through the direction of the mean view."""
    views = units[1:]
    pairs = [a @ b for i, a in enumerate(views) for j, b in enumerate(views) if i != j]
    distance = min(max(np.mean([1 - view @ units[0] for view in views]), 0), 1)
    t = rule.low + (rule.high - rule.low) * distance**0.9 * (np.mean(pairs) + 1) / 2
    angle = np.arccos(units[0] @ (goal := unit(views.mean(0))))
    return (np.sin((1 - t) * angle) * units[0] + np.sin(t * angle) * goal) / np.sin(angle)


def formula(rule, features):
    """What a rule makes of the features (1+k,D) of one picture, line by line."""
    units = np.array([unit(row) for row in features])
    directions = {
        ViewMean: lambda: units.mean(0),
        SmoothedFeatures: lambda: units[1:].mean(0),
        ReliabilityVote: lambda: vote(rule, units),
        DirectionalBias: lambda: bias(rule, units, features),
        GeodesicStep: lambda: geodesic(rule, units),
        ViewConsistency: lambda: units[0],
    }
    return np.linalg.norm(features[0]) * directions[type(rule)]()


def some_features(spread):
    """Features (5,7,6) whose views are at a distance `spread` from the picture's."""
    generator = torch.Generator().manual_seed(0)
    origin, views = (torch.randn(5, count, 6, generator=generator).double() for count in (1, 6))
    return torch.cat([origin, origin + spread * views], 1)


@every_rule
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_a_rule_is_its_formula_whatever_the_order_of_the_views(rule, spread):
    features = some_features(spread)
    expected = np.stack([formula(rule, rows) for rows in features.numpy()])
    assert np.allclose(rule(features), expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    order = torch.cat([features[:, :1], features[:, 1:][:, [3, 0, 5, 1, 4, 2]]], 1)
    torch.testing.assert_close(rule(order), rule(features), rtol=0, atol=1e-12)


def test_the_score_of_a_detector_is_the_mean_cosine():
    panel = Panel(network(), ViewConsistency(), STAGES, views=3)
    pictures, draws = smooth().double(), torch.rand(2, 1)
    rows = panel.features(pictures, draws).numpy()
    cosines = [np.mean([unit(view) @ unit(row[0]) for view in row[1:]]) for row in rows]
    answer = panel(pictures, draws, with_score=True)
    assert np.allclose(answer["score"][:, 0], cosines) and max(cosines) < 0.999
    with pytest.raises(ValueError, match="`rule` must have a `score`"):
        Panel(network(), ViewMean(), STAGES)(pictures, with_score=True)


@every_rule
def test_views_that_change_nothing_leave_the_bare_encoder(rule):
    bare, pictures = network(), smooth().double()
    panel = Panel(bare, rule, Compose([]), views=3)
    assert panel.randomness is None
    torch.testing.assert_close(panel(pictures), bare(pictures), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("number", range(len(RULES) + 2))
def test_a_defence_replays_row_by_row_and_its_gradient_is_the_slope(number):
    defence, pictures = defences()[number], smooth().double()
    pictures, draws = torch.cat([pictures, 0.3 + 0.4 * pictures]), torch.rand(4, 1)
    answer = defence(pictures, draws=draws)
    assert torch.equal(answer, defence(pictures, draws=draws))
    pieces = torch.cat([defence(pictures[rows], draws=draws[rows]) for rows in ([0], [1, 2], [3])])
    torch.testing.assert_close(pieces, answer, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(defence(pictures.flip(0), draws=draws.flip(0)), answer.flip(0), rtol=1e-6, atol=1e-6)
    fixed = defence(pictures)  # without draws one bank for all
    assert torch.equal(fixed, defence(pictures, draws=torch.full((4, 1), 0.5)))
    if not isinstance(getattr(defence, "rule", None), ViewConsistency):  # whose features are the picture's
        assert (defence(pictures, draws=draws + 1e-6) - answer).abs().amax(1).min() > 1e-4  # all views are others
    if isinstance(defence, Panel):
        assert_slope(lambda x: defence(x, draws=draws[:2]), 0.2 + 0.6 * pictures[:2])


class Recorder(nn.Module):
    """A network that remembers the pictures it is shown, and counts the rows of its passes forward and back."""

    def __init__(self):
        super().__init__()
        self.network, self.pictures, self.rows_back = network(), [], 0
        self.training = False

    def forward(self, images):
        self.pictures.append(images.detach())
        features = self.network(images)
        if features.requires_grad:
            features.register_hook(self.count)
        return features

    def count(self, gradient):
        self.rows_back += len(gradient)


def test_a_counterattack_takes_its_steps_and_passes_the_gradient_of_the_moved_picture():
    net, eps, step = network(), 0.05, 0.02
    for share in (0.0, torch.inf):
        recorder, pictures = Recorder(), (2 * smooth().double() - 0.5).clamp(0, 1).requires_grad_()
        answer = Counterattack(recorder, eps, step, 2, share)(pictures, torch.tensor([[0.2], [0.7]]))
        plain, noisy, first, target = recorder.pictures
        assert torch.equal(plain, pictures) and (noisy - plain).abs().max() > 0.9 * eps
        points = [noisy]
        for _ in range(2):
            leaf = points[-1].clone().requires_grad_()
            (slope,) = torch.autograd.grad((net(leaf) - net(plain)).square().sum(), leaf)
            change = (leaf.detach() + step * slope.sign() - plain).clamp(-eps, eps)
            points.append((plain + change).clamp(0, 1).detach())
        weights = np.exp([0, 2, 4]) / np.exp([0, 2, 4]).sum()
        torch.testing.assert_close(first, points[1], rtol=0, atol=1e-12)
        mean = sum(weight * point for weight, point in zip(weights, points, strict=True))
        torch.testing.assert_close(target, mean if share else noisy, rtol=0, atol=1e-12)
        leaf = target.clone().requires_grad_()
        expected = torch.autograd.grad(net(leaf).sin().sum(), leaf)[0]
        torch.testing.assert_close(torch.autograd.grad(answer.sin().sum(), pictures)[0], expected)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("has_gradient", [False, True])
def test_the_passes_are_those_that_the_network_makes(has_gradient, is_nested):
    for make in (
        lambda net: Panel(net, ViewMean(), STAGES, views=3),
        lambda net: Counterattack(net, steps=3),
        lambda net: Panel(Counterattack(net), ViewMean(), STAGES, views=2),
        lambda net: Counterattack(Panel(net, ViewMean(), STAGES, views=2), steps=1),
    ):
        recorder, count = Recorder(), PassCount()
        encoder, draws = make(recorder), torch.rand(2, make(recorder).randomness.dims)
        if is_nested:  # the engine takes a copy
            encoder = prepare(Layers(encoder, ["network.0"]), Decision(layout="channels_last"))
            recorder = next(module for module in encoder.run.modules() if isinstance(module, Recorder))
        counter = CountedCalls(encoder, count)
        pictures = smooth().double().requires_grad_(has_gradient)
        answer = counter(pictures, draws=draws)
        if has_gradient:
            (answer["output"] if is_nested else answer).sum().backward()
        expected = sum(map(len, recorder.pictures)), recorder.rows_back
        assert expected == passes_of(counter).of_calls(2, 2 * has_gradient) == (count.forward, count.backward)


def test_a_counterattack_depends_on_its_batch_by_less_than_verify_allows():
    encoder, pictures, draws = (
        Counterattack(load_encoder("pocket"), threshold=10.0),
        tiles(128).images[:32],
        torch.rand(32, 1),
    )
    with torch.no_grad():
        anchor, batch = encoder.encoder(pictures), encoder(pictures, draws=draws)
        rows = torch.cat([encoder(pictures[[i]], draws=draws[[i]]) for i in range(32)])
    cosines = [F.cosine_similarity(features, anchor) for features in (batch, rows)]
    study = SimpleNamespace(study=SimpleNamespace(encoder=encoder))
    assert (cosines[0] - cosines[1]).abs().max() < slack_of(study).cosine
    study.study.encoder = encoder.encoder
    assert slack_of(study).cosine < 2e-5


def test_an_ensemble_counts_the_passes_of_all_its_members_or_of_the_one_that_is_asked():
    net, pictures, draws = network(), smooth().double(), torch.rand(2, 1)
    counter = CountedCalls(Ensemble([Panel(net, ViewMean(), STAGES, views=3), net]))
    counter(pictures, draws=draws)
    assert counter.count.forward == len(pictures) * (4 + 1)
    for member, passes in ((0, 4), (1, 1)):
        counter.count = PassCount()
        partial(counter, only=member)(pictures, draws=draws)
        assert counter.count.forward == len(pictures) * passes
        assert passes_of(partial(counter, only=member)).forward == passes


def test_layers_show_the_picture():
    net, pictures = network(), smooth().double()
    with Layers(Panel(net, ViewMean(), STAGES), ["0"]) as layers, Layers(net, ["0"]) as bare:
        torch.testing.assert_close(layers(pictures)["0"], bare(pictures)["0"])


@pytest.mark.slow
def test_dropout_is_drawn_anew_for_each_view():
    net, pictures, draws = nn.Sequential(nn.Flatten(), nn.Dropout(0.5)).eval(), smooth(), torch.rand(2, 2)
    panel = Stochastic(Panel(net, lambda rows: (rows[:, 1] != rows[:, 2]).float(), [Flip(0.0)], views=2))
    assert panel.randomness.names == ("dropout (seed)", "defence (seed)")
    assert 0.4 < panel(pictures, draws=draws).mean() < 0.6 and not panel(pictures).any()
    assert torch.equal(panel(pictures, draws=draws), panel(pictures, draws=draws))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: Panel(net.train(), ViewMean(), STAGES), "training mode.*eval"),
        (lambda net: Panel(net, ViewMean, STAGES), "`rule` must be a function of features .*or an object; got"),
        (lambda net: Panel(net, ViewMean(), STAGES, views=0), "`views` must be .*at least 1.*got 0"),
        (lambda net: Panel(net, lambda f: f.mean((1, 2)), STAGES)(smooth()), r"`rule` must make \(N,D\).*got \(2,\)"),
        (lambda net: Panel(net[:2].eval(), ViewMean(), STAGES)(smooth()), "encoder of a `Panel` must be .*flatten"),
        (lambda net: ReliabilityVote(temperature=0.0), "`temperature` must be above 0; got 0"),
        (lambda net: DirectionalBias(share=1.5), "`share` must be above 0 and at most 1; got 1.5"),
        (lambda net: Counterattack(net, eps=0.0), "`eps` must be above 0 and at most 1, such as 4/255; got 0"),
        (lambda net: Counterattack(net, steps=0), "`steps` must be a whole number, at least 1; got 0"),
        (lambda net: Counterattack(Rounded().eval())(smooth()), "follows the encoder's gradient, and it has none"),
    ],
)
def test_what_is_no_defence_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make(small())
    assert "\n" not in str(error.value)


class Rounded(nn.Flatten):
    """An encoder without a gradient."""

    def forward(self, images):
        return super().forward(images.detach()).round()
