"""Laws of objectives: gradients, signs, invariances, known formulas, and refusals."""

import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Away, Toward, bank
from attacks.evaluation.scores import mean_embedding
from attacks.objectives.classification import DLR, CrossEntropy
from attacks.objectives.composite import Each, Ensemble, Members, Sum, Term
from attacks.objectives.embedding import Paired
from attacks.objectives.retrieval import InfoNCE, Retrieval, Triplet, Verification
from tests.helpers.sets import double, random
from transforms import Affine, Compose

N, D, G = 5, 6, 7


FEATURES, EMBEDDINGS, GOAL = (random(N, D, value=value) for value in (1, 2, 3))
GALLERY = random(G, D, value=4)
ROWS, TARGET_ROWS = torch.tensor([0, 2, 2, 5, 1]), torch.tensor([3, 1, 0, 4, 2])
LABELS = torch.tensor([3, 1, 4, 4, 1])


def cosine(a, b):
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def lead(scores, rows):
    """By how much each row's score is ahead of the best other, in loops."""
    pairs = zip(scores.tolist(), rows.tolist(), strict=True)
    return torch.tensor([s[r] - max(v for j, v in enumerate(s) if j != r) for s, r in pairs], dtype=double)


def cosines(features):
    return cosine(features[:, None], GALLERY)


class Case(NamedTuple):
    """An objective, its anchor, the attacker's measure (lower is better), and the features of the
    untouched picture, where the attack would start."""

    objective: object
    anchor: object
    metric: object
    start: object = EMBEDDINGS


CASES = {
    "away": Case(Away(), EMBEDDINGS, lambda f: cosine(f, EMBEDDINGS)),
    "away l2": Case(Away("l2"), EMBEDDINGS, lambda f: -(f - EMBEDDINGS).norm(dim=1)),
    "toward": Case(Toward(), GOAL, lambda f: -cosine(f, GOAL)),
    "toward l2": Case(Toward("l2"), GOAL, lambda f: (f - GOAL).norm(dim=1)),
    "paired": Case(Paired(Away()), EMBEDDINGS, lambda f: cosine(f, EMBEDDINGS)),
    "retrieval": Case(Retrieval(GALLERY), ROWS, lambda f: lead(cosines(f), ROWS), GALLERY[ROWS]),
    "retrieval margin": Case(Retrieval(GALLERY, 0.2), ROWS, lambda f: lead(cosines(f), ROWS), GALLERY[ROWS]),
    "nce": Case(InfoNCE(GALLERY), ROWS, lambda f: (cosines(f) / 0.07).softmax(1)[range(N), ROWS], GALLERY[ROWS]),
    "nce targeted": Case(
        InfoNCE(GALLERY, 0.2, True),
        TARGET_ROWS,
        lambda f: -(cosines(f) / 0.2).softmax(1)[range(N), TARGET_ROWS],
        GALLERY[ROWS],
    ),
    "triplet": Case(
        Triplet(), {"positive": GOAL, "negative": EMBEDDINGS}, lambda f: cosine(f, EMBEDDINGS) - cosine(f, GOAL)
    ),
    "triplet margin": Case(
        Triplet(0.3), {"positive": GOAL, "negative": EMBEDDINGS}, lambda f: cosine(f, EMBEDDINGS) - cosine(f, GOAL)
    ),
    "cross entropy": Case(CrossEntropy(), ROWS, lambda f: f.softmax(1)[range(N), ROWS]),
    "cross entropy targeted": Case(CrossEntropy(True), TARGET_ROWS, lambda f: -f.softmax(1)[range(N), TARGET_ROWS]),
    "dlr": Case(DLR(), LABELS, lambda f: lead(f, LABELS) / (f.sort(1).values[:, -1] - f.sort(1).values[:, -3])),
    "dlr targeted": Case(
        DLR(True),
        {"label": ROWS, "target": TARGET_ROWS},
        lambda f: (
            (f[range(N), ROWS] - f[range(N), TARGET_ROWS])
            / (f.sort(1).values[:, -1] - f.sort(1).values[:, -4:-2].mean(1))
        ),
    ),
    "verification": Case(Verification(0.3), EMBEDDINGS, lambda f: cosine(f, EMBEDDINGS)),
    "verification impostor": Case(Verification(0.3, same=False), GOAL, lambda f: -cosine(f, GOAL)),
    "sum": Case(
        Sum((Term(1.0, Away(), "own"), Term(0.5, Toward(), "goal"))),
        {"own": EMBEDDINGS, "goal": GOAL},
        lambda f: cosine(f, EMBEDDINGS) - cosine(f, GOAL) / 2,
    ),
    "sum of own": Case(Sum((Term(1.0, Away()), Term(0.0, Toward()), Term(0.1, Away("l2")))), EMBEDDINGS, None),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def gradient(case, features):
    leaf = features.clone().requires_grad_()
    return torch.autograd.grad(case.objective(leaf, case.anchor).sum(), leaf)[0]


@every_case
def test_gradients_pass_gradcheck(case):
    assert torch.autograd.gradcheck(lambda f: case.objective(f, case.anchor), FEATURES.clone().requires_grad_())


@every_case
def test_a_descent_step_helps_the_attacker_and_rows_are_independent(case):
    losses = case.objective(FEATURES, case.anchor)
    assert losses.shape == (N,)
    probe = FEATURES.clone()
    probe[0] -= 1e-4 * gradient(case, FEATURES)[0]
    later_losses = case.objective(probe, case.anchor)
    assert later_losses[0] < losses[0]
    assert torch.equal(later_losses[1:], losses[1:])
    if case.metric is not None:
        assert case.metric(probe)[0] < case.metric(FEATURES)[0]


@every_case
def test_stationary_at_anchor_is_whether_the_gradient_vanishes_at_the_start(case):
    steepness = gradient(case, case.start).norm(dim=1)
    assert bool((steepness < 1e-12).all()) is case.objective.stationary_at_anchor
    assert case.objective.stationary_at_anchor or (steepness > 1e-6).all()


PLAIN = ["away", "away l2", "toward", "toward l2", "retrieval", "nce", "triplet", "dlr", "dlr targeted", "sum"]


@pytest.mark.parametrize("name", PLAIN)
def test_the_loss_is_its_formula(name):
    case = CASES[name]
    loss = case.objective(FEATURES, case.anchor)
    torch.testing.assert_close(loss.exp() if name == "nce" else loss, case.metric(FEATURES), rtol=0, atol=1e-10)


def test_tokens_are_compared_in_pairs():
    tokens, other = random(N, 4, D, value=5), random(N, 4, D, value=6)
    for objective in (Away(), Away("l2"), Toward()):
        expected = torch.stack([objective(tokens[:, t], other[:, t]) for t in range(4)]).mean(0)
        torch.testing.assert_close(objective(tokens, other), expected, rtol=0, atol=1e-14)


# --- hinges ---


@pytest.mark.parametrize("name", ["retrieval", "triplet"])
def test_a_hinge_has_a_slope_of_one_percent_beyond_its_margin(name):
    plain = CASES[name]
    gap = plain.objective(FEATURES, plain.anchor)
    margin = float(-gap.sort().values[:2].mean())  # between the two that are furthest
    hinge = plain._replace(objective=Retrieval(GALLERY, margin) if name == "retrieval" else Triplet(margin))
    winners = gap < -margin
    assert winners.any()
    assert not winners.all()
    loss = hinge.objective(FEATURES, hinge.anchor)
    assert torch.equal(loss <= -margin, gap <= -margin)  # so that `stop=-margin` stops at this margin
    torch.testing.assert_close(loss[~winners], gap[~winners])
    torch.testing.assert_close(loss[winners], -margin + 0.01 * (gap + margin)[winners])
    slope = torch.where(winners, 0.01, 1.0)[:, None].double()
    torch.testing.assert_close(gradient(hinge, FEATURES), slope * gradient(plain, FEATURES))


def test_the_triplet_clamped_at_its_margin_equals_torchs():
    reference = F.triplet_margin_with_distance_loss(
        FEATURES, GOAL, EMBEDDINGS, distance_function=lambda a, b: 1 - cosine(a, b), margin=0.3, reduction="none"
    )
    ours = Triplet(0.3)(FEATURES, CASES["triplet"].anchor)
    torch.testing.assert_close((ours + 0.3).clamp(min=0), reference)


# --- classifiers ---


@pytest.mark.parametrize("targeted", [False, True])
def test_cross_entropy_and_its_gradient_equal_torchs_bit_for_bit(targeted):
    logits = FEATURES.float().requires_grad_()
    sign = 1 if targeted else -1
    ours, reference = CrossEntropy(targeted)(logits, LABELS), sign * F.cross_entropy(logits, LABELS, reduction="none")
    assert torch.equal(ours, reference)
    slopes = [torch.autograd.grad(loss @ EMBEDDINGS[:, 0].float(), logits)[0] for loss in (ours, reference)]
    assert torch.equal(*slopes)


def test_dlr_has_a_gradient_where_the_label_is_third():
    # The value is AutoAttack's, -1 for any logits; the gradient is not zero, and lowers the label.
    third = FEATURES.sort(1, descending=True).indices[:, 2]
    logits = FEATURES.clone().requires_grad_()
    loss = DLR()(logits, third)
    torch.testing.assert_close(loss.detach(), -torch.ones(N, dtype=double))
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    assert (slope.gather(1, third[:, None]) > 0).all()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_dlr_equals_torchattacks_bit_for_bit(dtype):
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    logits, label = random(200, 10).to(dtype), torch.arange(200) % 10
    target = (label + 1 + torch.arange(200) % 9) % 10
    reference = module.APGD(nn.Identity()).dlr_loss(logits, label)
    assert torch.equal(DLR()(logits, label), -reference)
    reference = module.APGDT(nn.Identity()).dlr_loss_targeted(logits, label, target)
    ours = DLR(True)(logits, {"label": label, "target": target})
    torch.testing.assert_close(ours, -reference, rtol=4 * torch.finfo(dtype).eps, atol=0)


# --- anchors over views ---


def test_the_mean_embedding_maximises_the_mean_cosine_to_the_views():
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 9, D)).double().eval()
    images = torch.rand(3, 3, 8, 9, dtype=double, generator=torch.Generator().manual_seed(0))
    views = bank(Compose([Affine(degrees=40, scale=(0.5, 1.5))]), 16, seed=0, purpose="anchor")
    views = views._replace(u=views.u.to(images))
    view_features = views.features(images, encoder, 16)
    ours = mean_embedding(images, encoder, views, chunk=5)

    def nearness(directions):
        return cosine(view_features, directions[:, None]).mean(1)

    torch.testing.assert_close(ours.norm(dim=1), torch.ones(3, dtype=double))
    for seed in range(20):
        assert (nearness(ours + 0.01 * random(3, D, value=seed)) < nearness(ours)).all()
    torch.testing.assert_close(mean_embedding(images, encoder, views), ours, rtol=0, atol=1e-14)
    tree = mean_embedding(images, lambda x: ({"one": encoder(x)}, 2 * encoder(x)), views)
    torch.testing.assert_close(tree[0]["one"], ours, rtol=0, atol=1e-14)
    torch.testing.assert_close(tree[1], ours, rtol=0, atol=1e-14)


# --- layers ---


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


# --- refusals ---

E, FIVE, FLAT = random(5, 6).float(), torch.arange(5), nn.Flatten().eval()
REFUSALS = {
    "away metric": (lambda: Away("l3"), "`metric` must be one of cosine, l2; got 'l3'"),
    "paired toward": (lambda: Paired(Toward()), "`inner`.*leads back"),
    "paired sum toward": (lambda: Paired(Sum((Term(1.0, Away()), Term(1.0, Toward())))), "`inner`.*leads back"),
    "apart in a sum": (lambda: Sum((Term(1.0, Members(Away(), "gradients")),)), "must not combine gradients"),
    "paired twice": (lambda: Paired(Paired(Away())), "`inner` must not be Paired"),
    "gallery of one": (lambda: InfoNCE(E[:1]), "`gallery`.*two"),
    "retrieval margin": (lambda: Retrieval(E, -0.1), r"`margin`.*\[0, 2\).*-0.1"),
    "triplet margin": (lambda: Triplet(2.0), "`margin`"),
    "temperature zero": (lambda: InfoNCE(E, 0.0), "`temperature`"),
    "threshold": (lambda: Verification(1.0), "`threshold`.*1.0"),
    "no term": (lambda: Sum(()), "`terms`"),
    "no weight": (lambda: Sum((Term(0.0, Away()),)), "`terms`.*above 0"),
    "negative weight": (lambda: Sum((Term(-1.0, Away()),)), r"terms\[0\].*-1"),
    "paired term": (lambda: Sum((Term(1.0, Paired(Away())),)), r"`terms\[0\]`.*outside"),
    "layer weight": (lambda: Each({"a": math.nan}, Away()), "weight of a"),
    "missing layer": (lambda: Each({"c": 1.0}, Away())(trees(0), trees(1)), "`features`.*'c' in it; got a, b"),
    "no encoder": (lambda: Ensemble([]), "`encoders` must hold at least one"),
    "training": (lambda: Ensemble([FLAT, nn.Flatten()]), r"`encoders\[1\]` is in training mode"),
    "combine": (lambda: Members(Away(), "logits"), "`combine` must be one of losses, gradients; got 'logits'"),
    "no objective": (lambda: Members(()), "`objective`"),
    "a tensor": (lambda: Members(Away())(E, (E,)), "must be tuples"),
    "too few": (lambda: Members((Away(), Away()))((E, E), (E,)), "a part for each of 2; got 1"),
    "paired member": (lambda: Members(Paired(Away())), "outside"),
    "features by layer": (lambda: Away()({"a": E}, E), "`features`.*Each"),
    "anchor by encoder": (lambda: Away()(E, (E,)), "`anchor`.*Members"),
    "anchor of labels": (lambda: Away()(E, FIVE), "`anchor` .*got torch.int64"),
    "labels of features": (lambda: Retrieval(E)(E, E), "whole number for each of 5 views"),
    "label ignored by torch": (
        lambda: CrossEntropy()(E, FIVE - 100),
        r"columns of the scores, 0\.\.\d+; got -100 to",
    ),
    "row before the gallery": (lambda: Retrieval(E, identity=FIVE)(E, FIVE - 1), "columns of the scores"),
    "too few labels": (lambda: CrossEntropy()(E, FIVE[:4]), "whole number for each of 5 views"),
    "triplet of a tensor": (lambda: Triplet()(E, E), "`anchor` of Triplet.*Tensor"),
    "triplet of one": (lambda: Triplet()(E, {"positive": E}), r"\['positive'\]"),
    "two classes": (lambda: DLR()(E[:, :2], FIVE), "at least 3 classes"),
    "three classes": (lambda: DLR(True)(E[:, :3], FIVE), "at least 4 classes"),
    "target alone": (lambda: DLR(True)(E, FIVE), "label and target"),
    "unknown part": (lambda: Sum((Term(1.0, Away(), "own"),))(E, {"goal": E}), "'own' in it; got goal"),
    "part of a tensor": (lambda: Sum((Term(1.0, Away(), "own"),))(E, E), "'own' in it; got a Tensor"),
}


@pytest.mark.parametrize(("make", "message"), REFUSALS.values(), ids=REFUSALS)
def test_impossible_settings_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
