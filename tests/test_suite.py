"""The suite: of each picture the worst of several attacks, compared on common views."""

import pytest
import torch

from attacks import EOT, Linf, bank, load_encoder
from attacks.aims import Aim, Known
from attacks.gallery import tiles
from attacks.objectives import Toward
from attacks.solver import pictures, watch
from attacks.suite import members, suite
from transforms import Affine, Compose

VIEWS = Compose([Affine(degrees=(-10, 10), scale=(0.9, 1.1))])


@pytest.fixture(scope="module")
def known():
    encoder, shown = load_encoder(), tiles(96).images[::8]
    gallery = encoder(shown)
    return Known(shown[:3], gallery[:3], gallery, torch.arange(3), None)


def setup(**changes):
    parts = {"encoder": load_encoder(), "perturbation": Linf(4 / 255), "eot": EOT(VIEWS, n=2), "steps": 4, "seed": 1}
    return parts | {"objective": None, "optimiser": None} | changes


def test_it_is_the_least_of_its_members_picture_by_picture(known):
    attacks = members(known, nearest=2)
    # Such that one target is right for some pictures, and another for the others.
    near, nearer = (each.anchor for each in attacks if each.name.startswith("apgd_nearest"))
    wanted = torch.stack([near[0], nearer[1], near[2]])
    goal = Aim(Toward(), wanted)
    *_, (_, last, best) = suite(known.images, goal, attacks, **setup())
    views = bank(VIEWS, 64, seed=1, purpose="select")  # the solver's own
    found, evals = [], 0
    for member in attacks:
        own = setup(objective=member.objective, optimiser=member.optimiser)
        *_, (step, alone) = watch(known.images, member.anchor, **own)
        attacked = pictures(own["perturbation"], known.images, alone.delta)
        found.append(views.losses(attacked, wanted, own["encoder"], goal.objective, 32).mean(1))
        evals += step.evals
    losses = torch.stack(found)
    torch.testing.assert_close(best.loss, losses.amin(0))
    assert last.last and last.evals == evals == 4 * 3 * 2 * len(attacks)
    assert len(losses.argmin(0).unique()) > 1  # else one attack would do


def test_the_members_are_what_the_suite_promises(known):
    attacks = members(known, nearest=2)
    nearest = ["apgd_nearest_1", "apgd_nearest_2"]
    assert [m.name for m in attacks] == ["wiener_cosine", "apgd_cosine", "apgd_hinge", *nearest, "square"]
    unit = torch.nn.functional.normalize(known.gallery, dim=1)
    order = (unit[:3] @ unit.T).argsort(1, descending=True)
    for place, member in ((1, attacks[3]), (2, attacks[4])):  # place 0 is the picture itself
        assert torch.equal(member.anchor, known.gallery[order[:, place]])


@pytest.mark.parametrize("nearest", [-1, 10_000])
def test_more_targets_than_there_are_is_refused(known, nearest):
    with pytest.raises(ValueError, match=r"`attack.nearest` must lie between 0 and"):
        members(known, nearest)
