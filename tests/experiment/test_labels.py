"""Galleries with several pictures of one identity: recognition, impostors and targets."""

from dataclasses import replace

import pytest
import torch

from attacks.data.gallery import Pictures, gather, on_shelf
from attacks.data.images import file_names, save_image
from attacks.objectives.aim import Aim, Knowledge
from attacks.objectives.embedding import Away
from attacks.objectives.retrieval import InfoNCE, Retrieval
from attacks.optimisers.apgd import APGD
from attacks.schema import groups
from attacks.schema.objective import InfoNCEConfig, MixedConfig
from attacks.solvers.suite import members
from attacks.study.data import targeted
from attacks.study.objective import aim_of
from tests.helpers.galleries import all_pictures
from tests.helpers.wrong import refused
from transforms import Compose

#: Five pictures of three identities, two of them with two.
ANGLES = torch.tensor([0.0, 20.0, 40.0, 60.0, 90.0]).deg2rad()
GALLERY = torch.stack([ANGLES.cos(), ANGLES.sin()], dim=1)
IDENTITY = torch.tensor([0, 1, 0, 2, 2])


def at(*degrees):
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def cosines(degrees):
    return (torch.tensor(degrees) - ANGLES.rad2deg()).deg2rad().cos()


@pytest.mark.parametrize("row", range(5))
def test_retrieval_is_the_margin_between_the_identity_and_any_impostor(row):
    features = at(*torch.arange(-20.0, 110, 0.7).tolist())
    loss = Retrieval(GALLERY, identity=IDENTITY)(features, torch.full((len(features),), row))
    similarity, is_mine = features @ GALLERY.double().T, IDENTITY[row] == IDENTITY
    margin = similarity[:, is_mine].amax(1) - similarity[:, ~is_mine].amax(1)
    torch.testing.assert_close(loss, margin, atol=1e-6, rtol=0)
    assert 0 < int((loss < 0).sum()) < len(loss)  # negative where the nearest has another identity


def test_infonce_is_the_log_of_the_softmax_share_of_the_identity():
    row, temperature = torch.tensor([3]), 0.1
    share = (cosines(50.0) / temperature).softmax(0)[IDENTITY == 2].sum()
    for is_aimed, sign in ((False, 1), (True, -1)):
        objective = InfoNCE(GALLERY, temperature, is_aimed, IDENTITY)
        torch.testing.assert_close(objective(at(50.0).float(), row), sign * share.log()[None])


@pytest.mark.parametrize("make", [Retrieval, InfoNCE], ids=["retrieval", "infonce"])
def test_unique_identities_give_the_loss_without_identities(make):
    gallery, features = torch.randn(9, 5), torch.randn(6, 5, requires_grad=True)
    rows = torch.randint(0, 9, (6,))
    losses = [make(gallery, identity=identities)(features, rows) for identities in (None, torch.randperm(9))]
    torch.testing.assert_close(*losses)
    grads = [torch.autograd.grad(loss.sum(), features)[0] for loss in losses]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("make", [Retrieval, InfoNCE], ids=["retrieval", "infonce"])
@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (torch.zeros(5, dtype=torch.long), "`gallery` shows one identity only"),
        (torch.arange(4), "`identity` must hold"),
        (torch.rand(5), "`identity` must hold"),
    ],
)
def test_invalid_identities_are_refused(make, identity, message):
    refused(message, make, GALLERY, identity=identity)


OBJECTIVE = groups.CHOICES["objective"]
NODES = {
    "retrieval": OBJECTIVE["retrieval"](),
    "hinge": OBJECTIVE["retrieval"](margin=0.1),
    "infonce": InfoNCEConfig(temperature=0.1),
    "mixed": MixedConfig(away=1, retrieval=1),
}


@pytest.mark.parametrize("name", NODES)
def test_every_search_objective_uses_the_identities(name):
    # At 38 degrees the picture at 40 is an impostor of that at 0, unless they have one identity.
    knowledge = Knowledge(torch.zeros(1, 3, 8, 8), GALLERY[:1], GALLERY, torch.tensor([0]), None, IDENTITY)
    losses = []
    for facts_variant in (knowledge, knowledge._replace(identity=None)):
        objective, anchor = aim_of(NODES[name], facts_variant, Away(), Compose(), seed=0)  # no encoder is called
        losses.append(float(objective(at(38.0).float(), anchor)))
    assert losses[0] > losses[1] + 0.1


def test_targets_of_a_suite_have_other_identities():
    knowledge = Knowledge(torch.zeros(2, 3, 8, 8), GALLERY[:2], GALLERY, torch.tensor([0, 1]), None, IDENTITY)
    attacks = {
        facts_variant.name: facts_variant
        for facts_variant in members(knowledge, 2, Aim(Away(), knowledge.embeddings), APGD())
    }
    # Of 0 degrees, identity 0: 20, then 60 (40 is its own). Of 20, alone: 0 or 40, both 20 away.
    assert torch.equal(attacks["apgd_nearest_1"].anchor[0], GALLERY[1])
    assert torch.equal(attacks["apgd_nearest_2"].anchor[0], GALLERY[3])
    assert attacks["apgd_hinge"].objective.identity is IDENTITY
    with pytest.raises(ValueError, match=r"`attack.nearest` must lie between 0 and 3"):
        members(knowledge, 4, Aim(Away(), knowledge.embeddings), APGD())


def noise(seed):
    return torch.randint(0, 256, (3, 16, 16), generator=torch.Generator().manual_seed(seed)).float() / 255


def shelf(labels, *seeds):
    result = Pictures(tuple("abcdefgh"[: len(seeds)]), torch.stack([noise(seed) for seed in seeds])).shelf()
    return replace(result, labels=tuple(labels))


def test_without_repeated_labels_there_are_no_label_numbers():
    gallery = on_shelf(shelf(["x", None, "y"], 1, 2, 3))
    assert gallery.label_numbers is None
    rows = torch.arange(3)
    assert torch.equal(gallery.same(rows[:, None], rows), torch.eye(3, dtype=torch.bool))


def test_identities_come_from_labels_or_else_from_equal_pixels():
    gallery = on_shelf(shelf(["x", None, "x", None, None, "y", None], 1, 2, 3, 2, 4, 5, 1))
    assert gallery.label_numbers.tolist() == [0, 1, 0, 1, 2, 3, 0]  # the last has the pixels of the first
    assert gallery.same(torch.tensor([0, 0, 1]), torch.tensor([2, 5, 3])).tolist() == [True, False, True]


def test_a_query_has_the_identity_that_its_file_has_in_the_gallery():
    gallery = gather(shelf([None, None], 1, 2), shelf(["x", "x", "y"], 1, 3, 4))
    assert gallery.labels == ("x", None, "x", "y")
    refused(r"same pixels and two identities, x and y", gather, shelf(["x"], 1), shelf(["y"], 1))


def test_equal_pixels_with_two_identities_are_refused():
    for labels in (["x", "y", None], ["x", None, "y"]):
        seeds = [1, 1, 2] if labels[1] else [1, 2, 1]
        refused(r"same pixels and two identities, x and y", on_shelf, shelf(labels, *seeds))
    refused(r"same pixels and two identities, x and y", gather, shelf([None], 3), shelf(["x", "y"], 1, 1))
    assert gather(shelf([None, None], 1, 1), shelf(["x"], 1)).labels == ("x", None)


def test_the_target_another_has_another_identity():
    gallery, truth = on_shelf(shelf(["x", "x", "x", "y"], 1, 2, 3, 4)), torch.tensor([0, 1, 2])
    for seed in range(5):
        assert targeted("another", gallery, truth, seed, 16)[1].tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="more than one picture, or identity"):
        targeted("another", on_shelf(shelf(["x", "x"], 1, 2)), truth[:2], 0, 16)
    refused("shows the same: 'b'", targeted, "b", gallery, truth[:1], 0, 16)


def test_a_target_from_a_file_is_found_under_any_name(tmp_path):
    gallery, truth = on_shelf(shelf([None, None], 1, 2)), torch.tensor([0])
    for name, seed, row, count in (("copy.png", 2, 1, 2), ("a", 3, 2, 3), ("new.png", 3, 2, 3)):
        save_image(tmp_path / name, noise(seed))
        joint_gallery, goal = targeted(str(tmp_path / name), gallery, truth, 0, 16)
        assert (goal.tolist(), len(joint_gallery)) == ([row], count)
        assert torch.equal(all_pictures(joint_gallery)[row], noise(seed))


def test_a_target_is_of_another_cluster():
    result = Pictures(("my-1-1", "my-1-2"), torch.stack([noise(1), noise(2)])).shelf()
    assert targeted("another", on_shelf(result), torch.tensor([0]), 0, 16)[1].tolist() == [1]
    images, clusters = torch.stack([noise(1), noise(2), noise(3)]), ("my", "my", "your")
    tiles = Pictures(("my-1-1", "my-1-2", "your-1-1"), images, clusters=clusters).shelf()
    assert targeted("another", on_shelf(tiles), torch.tensor([0]), 0, 16)[1].tolist() == [2]


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (("a.png", "b.jpg"), ["a.png", "b.png"]),
        (("a.png", "a.jpg"), ["a.png.png", "a.jpg.png"]),
        (("p/a.png", "q/a.png", "b.png"), ["p-a.png.png", "q-a.png.png", "b.png"]),
        (("p/a.png", "p-a.png", "q/a.png"), ["p-a.png.png", "p-a.png", "q-a.png.png"]),
        (("p/a.png", "q/a.png", "p-a.png.png"), ["0-p-a.png.png", "1-q-a.png.png", "2-p-a.png.png"]),
    ],
    ids=str,
)
def test_every_picture_is_written_to_its_own_file(names, files):
    assert file_names(names) == files and len(set(files)) == len(files)
