"""From the name of an objective to the loss that the attacker lowers."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from attacks import EOT, PGD, Linf, bank, load_encoder, solve
from attacks.data.gallery import tiles
from attacks.objectives.aim import Knowledge
from attacks.schema import groups
from attacks.schema.objective import AwayConfig, InfoNCEConfig, LayersConfig, MixedConfig, TowardConfig, TripletConfig
from attacks.study.make import declared_class
from attacks.study.objective import aim_of, shown_sign, wants_gallery, watching_layers
from attacks.study.pipeline import pipeline
from transforms import Affine, Compose
from transforms.compose import seen

VIEWS = Compose([Affine(degrees=(-10, 10), scale=(0.9, 1.1))])
OBJECTIVE = groups.CHOICES["objective"]
NODES = {
    "away": AwayConfig(),
    "l2": AwayConfig(metric="l2"),
    "views": AwayConfig(anchor="views"),
    "paired": AwayConfig(anchor="paired"),
    "toward": TowardConfig(target="another"),
    "retrieval": OBJECTIVE["retrieval"](),
    "hinge": OBJECTIVE["retrieval"](margin=0.1),
    "triplet": TripletConfig(target="another"),
    "infonce": InfoNCEConfig(temperature=0.07),
    "infonce toward": InfoNCEConfig(temperature=0.07, target="another"),
    "verification": OBJECTIVE["verification"](threshold=0.5),
    "layers": LayersConfig(layers=["stages.2", "stages.8:mean"]),
    "weighted": LayersConfig(layers=["stages.2", "stages.8:mean"], weights=[3, 1]),
    "layers paired": LayersConfig(layers=["stages.5:flat"], anchor="paired"),
    "layers views": LayersConfig(layers=["stages.5:flat"], anchor="views"),
    "mixed": MixedConfig(away=1, retrieval=0.5),
}


@pytest.fixture(scope="module")
def setting():
    encoder, pictures = load_encoder(), tiles(96)
    gallery = encoder(pictures.images[::8])
    images = pictures.images[::8][:2]
    return encoder, Knowledge(images, gallery[:2], gallery, torch.tensor([0, 1]), torch.tensor([5, 6]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_the_attack_lowers_its_loss_on_unseen_views(name, setting):
    plain, data = setting
    node, perturbation, views = NODES[name], Linf(8 / 255), bank(VIEWS, 16, seed=3, purpose="test")
    with watching_layers(plain, node) as encoder:
        objective, anchor = aim_of(node, data, encoder, VIEWS, seed=0)
        parts = {"encoder": encoder, "objective": objective, "perturbation": perturbation, "optimiser": PGD()}
        best = solve(data.images, anchor, **parts, eot=EOT(VIEWS, views=2), steps=16)
        attacked_images = seen(perturbation.scene(data.images, best.delta))
        clean_loss, attack_loss = (
            views.losses(x, anchor, encoder, objective, 16, untouched=data.images).mean(1)
            for x in (data.images, attacked_images)
        )
    assert (attack_loss < clean_loss - 0.02).all()


def test_away_toward_and_triplet_are_the_plain_cosines(setting):
    encoder, data = setting
    features = torch.randn(2, data.embeddings.shape[1], generator=torch.Generator().manual_seed(0))
    away, toward = (F.cosine_similarity(features, x, dim=1) for x in (data.embeddings, data.gallery[data.goal]))
    for name, expected in {"away": away, "toward": -toward, "triplet": away - toward}.items():
        objective, anchor = aim_of(NODES[name], data, encoder, VIEWS, seed=0)
        torch.testing.assert_close(objective(features, anchor), expected)


def test_each_weight_belongs_to_its_layer(setting):
    plain, data = setting
    result = {}
    for name, weights in (("both", []), ("first", [1, 0]), ("second", [0, 1])):
        node = LayersConfig(layers=["stages.2", "stages.8:mean"], weights=weights)
        with watching_layers(plain, node) as encoder:
            objective, anchor = aim_of(node, data, encoder, VIEWS, seed=0)
            result[name] = objective(encoder(data.images.flip(0)), anchor)
    torch.testing.assert_close(result["both"], (result["first"] + result["second"]) / 2)


def test_the_encoders_of_an_ensemble_count_alike(setting):
    plain, data = setting
    member, node = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten()).eval(), AwayConfig(encoders=["any"])
    with watching_layers(plain, node, (member,)) as encoder:
        objective, anchor = aim_of(node, data, encoder, VIEWS, seed=0)
        result = objective(encoder(data.images.flip(0)), anchor)
    pairs = [(module(data.images.flip(0)), module(data.images)) for module in (plain, member)]
    torch.testing.assert_close(result, sum(F.cosine_similarity(*pair, dim=1) for pair in pairs) / 2)


def test_infonce_with_a_target_is_the_cross_entropy_of_the_gallery(setting):
    encoder, data = setting
    objective, anchor = aim_of(NODES["infonce toward"], data, encoder, VIEWS, seed=0)
    cosines = torch.nn.functional.normalize(data.gallery, dim=1)
    logits = torch.nn.functional.normalize(encoder(data.images), dim=1) @ cosines.T / 0.07
    expected = torch.nn.functional.cross_entropy(logits, data.goal, reduction="none")
    torch.testing.assert_close(objective(encoder(data.images), anchor), expected, rtol=1e-4, atol=1e-5)


def test_objectives_with_a_gallery_and_objectives_shown_with_reversed_sign():
    assert {name for name, node in NODES.items() if wants_gallery(node)} == {
        *("toward", "triplet", "retrieval", "hinge", "infonce", "infonce toward", "mixed")
    }
    assert [name for name, node in NODES.items() if shown_sign(node) < 0] == ["toward"]
    assert shown_sign(TowardConfig(target="another", metric="l2")) == 1


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (AwayConfig(anchor="mean"), "`objective.anchor` must be one of own, views, paired"),
        (AwayConfig(metric="l2", anchor="views"), "needs `objective.metric` cosine"),
        (AwayConfig(metric="l1"), "`objective.metric` must be one of cosine, l2"),
        (OBJECTIVE["retrieval"](margin=3), "`objective.margin` is a difference of cosines"),
    ],
)
def test_an_invalid_objective_is_refused_by_name(node, message, setting):
    encoder, data = setting
    with pytest.raises(ValueError, match=message):
        aim_of(node, data, encoder, VIEWS, seed=0)


@pytest.mark.parametrize(
    ("layers", "weights", "message"),
    [
        (["stages.99"], [], r"^`objective.layers`: the encoder has no 'stages.99'; did you mean"),
        (["stages.2:max"], [], r"^`objective.layers`: the pool of stages.2 must be one of flat, mean.*; got 'max'"),
        (["stages.2", "stages.2:mean"], [], r"^`objective.layers` may name a layer once; got stages.2 twice"),
        ([], [], r"^`objective.layers` must name at least one layer"),
        (["stages.2"], [1, 2], r"^`objective.weights` must be one number for each of 1 layers, or none; got 2"),
        (["stages.2"], [-1], r"^`objective.weights` must be numbers from 0 up, not all of them 0; got \[-1"),
        (["stages.2"], [0], r"^`objective.weights` must be numbers from 0 up"),
        (["stages.2"], [float("nan")], r"^`objective.weights` must be numbers from 0 up"),
    ],
)
def test_invalid_layers_are_refused_by_name(layers, weights, message, setting):
    with (
        pytest.raises(ValueError, match=message),
        watching_layers(setting[0], LayersConfig(layers=layers, weights=weights)),
    ):
        pass


def test_views_of_a_camera_give_an_anchor(setting):
    encoder, data = setting
    node = AwayConfig(anchor="views")
    camera = pipeline(groups.ViewsConfig(name="c", stages={"affine": {"degrees": [-5, 5]}}))
    _, anchor = aim_of(node, data, encoder, camera, seed=0)
    # A mean direction of views lies near the picture's own embedding, and is not it.
    cosine = F.cosine_similarity(anchor, data.embeddings, dim=1)
    assert ((cosine > 0.8) & (cosine < 0.9999)).all()


@pytest.mark.parametrize("name", groups.DECLARED["objective"])
def test_a_declared_objective_states_whether_its_gradient_vanishes_at_the_anchor(name):
    part = declared_class("objective", name)
    gallery = torch.randn(6, 32, dtype=torch.float64)
    has_gallery = "gallery" in inspect.signature(part).parameters
    objective = part(gallery=gallery) if has_gallery else part()
    features = gallery[:4].clone().requires_grad_()
    objective(features, torch.arange(4) if has_gallery else gallery[:4]).sum().backward()
    assert bool((features.grad.norm(dim=1) < 1e-9).all()) is objective.stationary_at_anchor
