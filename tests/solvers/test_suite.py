"""The suite: of each picture the worst of several attacks, compared on common views."""

import pytest
import torch

from attacks import EOT, PGD, Linf, bank, load_encoder
from attacks.data.gallery import tiles
from attacks.objectives.aim import Aim, Knowledge
from attacks.objectives.embedding import Away, Toward
from attacks.objectives.retrieval import InfoNCE, Triplet
from attacks.optimisers.apgd import APGD
from attacks.optimisers.square import Square
from attacks.optimisers.wiener import Wiener
from attacks.solvers.suite import members
from tests.helpers.solving import suite, watch
from transforms import Affine, Compose

VIEWS = Compose([Affine(degrees=(-10, 10), scale=(0.9, 1.1))])


@pytest.fixture(scope="module")
def known():
    encoder, shown = load_encoder(), tiles(96).images[::8]
    gallery = encoder(shown)
    return Knowledge(shown[:3], gallery[:3], gallery, torch.arange(3), None)


def setup(**changes):
    parts = {"encoder": load_encoder(), "perturbation": Linf(4 / 255), "eot": EOT(VIEWS, views=2)}
    return parts | {"steps": 4, "seed": 1, "objective": None, "optimiser": PGD()} | changes


@pytest.mark.slow
def test_suite_has_the_least_loss_of_its_members_per_picture(known):
    aim = Aim(Away(), known.embeddings)
    attacks = [each for each in members(known, 2, aim, Wiener()) if each.name != "square"]
    # Such that one target is best for some pictures, and another for the others.
    near, nearer = (each.anchor for each in attacks if each.name.startswith("apgd_nearest"))
    goal = Aim(Toward(), torch.stack([near[0], nearer[1], near[2]]))
    *_, (_, last, best) = suite(known.images, goal, attacks, **setup())
    views = bank(VIEWS, 32, seed=1, purpose="select")  # the solver's own
    result, evals = [], 0
    for member in attacks:
        own = setup(objective=member.objective, optimiser=member.optimiser)
        *_, (step, alone) = watch(known.images, member.anchor, **own)
        attacked = own["perturbation"].scene(known.images, alone.delta)
        result.append(views.losses(attacked, goal.anchor, own["encoder"], goal.objective, 32).mean(1))
        evals += step.evals
    losses = torch.stack(result)
    torch.testing.assert_close(best.loss, losses.amin(0))
    assert last.last and last.evals == evals == 4 * 3 * 2 * len(attacks)
    assert len(losses.argmin(0).unique()) > 1  # else one attack would be enough


def test_members_have_the_documented_names_and_targets(known):
    aim = Aim(Away(), known.embeddings)
    attacks = {each.name: each for each in members(known, 2, aim, Wiener(0.3))}
    assert list(attacks) == ["wiener", "apgd", "square", "apgd_hinge", "apgd_nearest_1", "apgd_nearest_2"]
    assert attacks["wiener"].optimiser == Wiener(0.3)
    unit = torch.nn.functional.normalize(known.gallery, dim=1)
    order = (unit[:3] @ unit.T).argsort(1, descending=True)
    for place in (1, 2):  # place 0 is the picture itself
        assert torch.equal(attacks[f"apgd_nearest_{place}"].anchor, known.gallery[order[:, place]])


AIMS = {
    "toward": lambda g: Aim(Toward(), g[[5, 6, 7]]),
    "triplet": lambda g: Aim(Triplet(), {"positive": g[[5, 6, 7]], "negative": g[:3]}),
    "infonce": lambda g: Aim(InfoNCE(g), torch.arange(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AIMS)
def test_no_suite_is_weaker_than_a_single_run(name, known):
    # For every objective the first member is the run itself.
    aim = AIMS[name](known.gallery)
    known = known._replace(goal=torch.tensor([5, 6, 7]) if name != "infonce" else None)
    attacks = members(known, 0, aim, Wiener())
    *_, (_, single) = watch(known.images, aim.anchor, **setup(objective=aim.objective, optimiser=Wiener()))
    *_, (_, _, best) = suite(known.images, aim, attacks, **setup())
    assert (best.loss <= single.loss + 1e-6).all()


@pytest.mark.parametrize("optimiser", [APGD(rho=0.5), Square(p_init=0.3)], ids=["apgd", "square"])
def test_optimiser_of_the_run_keeps_its_settings(known, optimiser):
    attacks = members(known, 0, Aim(Away(), known.embeddings), optimiser)
    assert attacks[0].optimiser == optimiser
    assert sorted(each.name for each in attacks) == ["apgd", "apgd_hinge", "square"]


@pytest.mark.parametrize("nearest", [-1, 10_000])
def test_too_many_targets_are_refused(known, nearest):
    with pytest.raises(ValueError, match=r"`attack.nearest` must lie between 0 and"):
        members(known, nearest, Aim(Away(), known.embeddings), Wiener())
