"""The result of an attack with each objective, and what objectives refuse."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, PGD, Away, Linf, Toward, load_encoder, solve
from attacks.data.gallery import tiles
from attacks.objectives.classification import DLR, CrossEntropy
from attacks.objectives.composite import Each, Sum, Term
from attacks.objectives.embedding import Paired
from attacks.objectives.ensemble import Members
from attacks.objectives.retrieval import InfoNCE, Retrieval, Triplet, Verification

THREE, TARGETS = torch.arange(3), torch.tensor([9, 10, 11])


class Unit(nn.Module):
    def forward(self, x):
        return F.normalize(x, dim=1)


@pytest.fixture(scope="module")
def encoder():
    return load_encoder()


@pytest.fixture(scope="module")
def pictures():
    return tiles(96).spread(24).images


@pytest.fixture(scope="module")
def gallery(encoder, pictures):
    with torch.no_grad():
        return encoder(pictures)


@pytest.fixture(scope="module")
def classifier(encoder, gallery):
    """The gallery as the weights of a head, so that every picture is a class."""
    head = nn.Linear(*reversed(gallery.shape), bias=False).requires_grad_(False)
    head.weight.copy_(20 * F.normalize(gallery, dim=1))
    return nn.Sequential(encoder, Unit(), head).eval()


def attack_files(pictures, encoder, objective, anchor):
    parts = {"perturbation": Linf(0.2), "optimiser": PGD(), "eot": EOT(views=1), "steps": 15}
    return pictures[:3] + solve(pictures[:3], anchor, encoder=encoder, objective=objective, **parts).delta


# From a gallery: the objective, its anchor, and the row that each picture should be recognised as (None: any other).
GOALS = {
    "away": lambda g: (Away(), g[:3], None),
    "paired": lambda g: (Paired(Away()), g[:3], None),
    "rejected": lambda g: (Verification(0.3), g[:3], None),
    "retrieval": lambda g: (Retrieval(g), THREE, None),
    "retrieval with a margin": lambda g: (Retrieval(g, 0.1), THREE, None),
    "nce": lambda g: (InfoNCE(g), THREE, None),
    "cross entropy": lambda g: (CrossEntropy(), THREE, None),
    "dlr": lambda g: (DLR(), THREE, None),
    "toward": lambda g: (Toward(), g[TARGETS], TARGETS),
    "toward l2": lambda g: (Toward("l2"), g[TARGETS], TARGETS),
    "accepted": lambda g: (Verification(0.6, same=False), g[TARGETS], TARGETS),
    "nce targeted": lambda g: (InfoNCE(g, targeted=True), TARGETS, TARGETS),
    "triplet": lambda g: (Triplet(0.2), {"positive": g[TARGETS], "negative": g[:3]}, TARGETS),
    "cross entropy targeted": lambda g: (CrossEntropy(True), TARGETS, TARGETS),
    "dlr targeted": lambda g: (DLR(True), {"label": THREE, "target": TARGETS}, None),
    "sum": lambda g: (
        Sum((Term(1.0, Away(), "own"), Term(1.0, Toward(), "goal"))),
        {"own": g[:3], "goal": g[TARGETS]},
        TARGETS,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", GOALS.values(), ids=GOALS)
def test_an_attack_reaches_its_goal(pictures, encoder, classifier, gallery, make):
    objective, anchor, rows = make(gallery)
    run = classifier if isinstance(objective, CrossEntropy | DLR) else encoder
    attack_result = attack_files(pictures, run, objective, anchor)
    with torch.no_grad():
        result = classifier(attack_result).argmax(1)
    assert (result != THREE).all() if rows is None else torch.equal(result, rows)


E, ROWS = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.arange(5)
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
    "paired member": (lambda: Members(Paired(Away())), "outside"),
    "features by layer": (lambda: Away()({"a": E}, E), "`features`.*Each"),
    "anchor by encoder": (lambda: Away()(E, (E,)), "`anchor`.*Members"),
    "anchor of labels": (lambda: Away()(E, ROWS), "`anchor` .*got torch.int64"),
    "labels of features": (lambda: Retrieval(E)(E, E), "whole number for each of 5 views"),
    "label ignored by torch": (
        lambda: CrossEntropy()(E, ROWS - 100),
        r"columns of the scores, 0\.\.\d+; got -100 to",
    ),
    "row before the gallery": (lambda: Retrieval(E, identity=ROWS)(E, ROWS - 1), "columns of the scores"),
    "too few labels": (lambda: CrossEntropy()(E, ROWS[:4]), "whole number for each of 5 views"),
    "triplet of a tensor": (lambda: Triplet()(E, E), "`anchor` of Triplet.*Tensor"),
    "triplet of one": (lambda: Triplet()(E, {"positive": E}), r"\['positive'\]"),
    "two classes": (lambda: DLR()(E[:, :2], ROWS), "at least 3 classes"),
    "three classes": (lambda: DLR(True)(E[:, :3], ROWS), "at least 4 classes"),
    "target alone": (lambda: DLR(True)(E, ROWS), "label and target"),
    "unknown part": (lambda: Sum((Term(1.0, Away(), "own"),))(E, {"goal": E}), "'own' in it; got goal"),
    "part of a tensor": (lambda: Sum((Term(1.0, Away(), "own"),))(E, E), "'own' in it; got a Tensor"),
}


@pytest.mark.parametrize(("make", "message"), REFUSALS.values(), ids=REFUSALS)
def test_impossible_settings_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
