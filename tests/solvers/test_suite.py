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
from attacks.solvers.suite import Member, members
from tests.helpers.solving import suite, watch
from transforms import Affine, Compose

VIEWS = Compose([Affine(degrees=(-10, 10), scale=(0.9, 1.1))])


@pytest.fixture(scope="module")
def gallery_case():
    encoder, photos = load_encoder(), tiles(96).images[::8]
    gallery = encoder(photos)
    return Knowledge(photos[:3], gallery[:3], gallery, torch.arange(3), None)


def setup(**changes):
    parts = {"encoder": load_encoder(), "perturbation": Linf(4 / 255), "eot": EOT(VIEWS, views=2)}
    return parts | {"steps": 4, "seed": 1, "objective": None, "optimiser": PGD()} | changes


@pytest.mark.slow
def test_suite_has_the_least_loss_of_its_members_per_picture(gallery_case):
    aim = Aim(Away(), gallery_case.embeddings)
    attacks = [member for member in members(gallery_case, 2, aim, Wiener()) if member.name != "square"]
    # Such that one target is best for some pictures, and another for the others.
    near, nearer = (member.anchor for member in attacks if member.name.startswith("apgd_nearest"))
    goal = Aim(Toward(), torch.stack([near[0], nearer[1], near[2]]))
    *_, (_, end, best) = suite(gallery_case.images, goal, attacks, **setup())
    views = bank(VIEWS, 32, seed=1, purpose="select")  # the solver's own
    result, evals = [], 0
    for member in attacks:
        arguments = setup(objective=member.objective, optimiser=member.optimiser)
        *_, (step, single_best) = watch(gallery_case.images, member.anchor, **arguments)
        scene = arguments["perturbation"].scene(gallery_case.images, single_best.delta)
        result.append(views.losses(scene, goal.anchor, arguments["encoder"], goal.objective, 32).mean(1))
        evals += step.evals
    losses = torch.stack(result)
    torch.testing.assert_close(best.loss, losses.amin(0))
    assert end.last and end.evals == evals == 4 * 3 * 2 * len(attacks)
    assert len(losses.argmin(0).unique()) > 1  # else one attack would be enough


@pytest.mark.parametrize("continues", [True, False])
def test_a_member_that_continues_begins_with_the_best_before_it(gallery_case, continues):
    slow, aim = PGD(rel_step_size=1e-6), Aim(Away(), gallery_case.embeddings)
    attacks = [Member("first", *aim, PGD()), Member("second", *aim, slow, continues)]
    steps = [(name, step, best) for name, step, best in suite(gallery_case.images, aim, attacks, **setup())]
    (_, _, best), (_, end, _) = next(item for item in steps if item[1].last), steps[-1]
    assert torch.allclose(end.delta, best.delta, atol=1e-6) == continues
    second_run = [*suite(gallery_case.images, aim, attacks, state=steps[5][1].state, **setup())]
    assert torch.equal(second_run[-1][1].delta, end.delta) and len(second_run) == len(steps) - 6


def test_members_have_the_documented_names_and_targets(gallery_case):
    aim = Aim(Away(), gallery_case.embeddings)
    attacks = {member.name: member for member in members(gallery_case, 2, aim, Wiener(0.3))}
    assert list(attacks) == ["wiener", "apgd", "square", "apgd_hinge", "apgd_nearest_1", "apgd_nearest_2"]
    assert attacks["wiener"].optimiser == Wiener(0.3)
    unit = torch.nn.functional.normalize(gallery_case.gallery, dim=1)
    order = (unit[:3] @ unit.T).argsort(1, descending=True)
    for place in (1, 2):  # place 0 is the picture itself
        assert torch.equal(attacks[f"apgd_nearest_{place}"].anchor, gallery_case.gallery[order[:, place]])


AIMS = {
    "toward": lambda g: Aim(Toward(), g[[5, 6, 7]]),
    "triplet": lambda g: Aim(Triplet(), {"positive": g[[5, 6, 7]], "negative": g[:3]}),
    "infonce": lambda g: Aim(InfoNCE(g), torch.arange(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AIMS)
def test_no_suite_is_weaker_than_a_single_run(name, gallery_case):
    # For every objective the first member is the run itself.
    aim = AIMS[name](gallery_case.gallery)
    gallery_case = gallery_case._replace(goal=torch.tensor([5, 6, 7]) if name != "infonce" else None)
    attacks = members(gallery_case, 0, aim, Wiener())
    *_, (_, single) = watch(gallery_case.images, aim.anchor, **setup(objective=aim.objective, optimiser=Wiener()))
    *_, (_, _, best) = suite(gallery_case.images, aim, attacks, **setup())
    assert (best.loss <= single.loss + 1e-6).all()


@pytest.mark.parametrize("optimiser", [APGD(rho=0.5), Square(p_init=0.3)], ids=["apgd", "square"])
def test_optimiser_of_the_run_keeps_its_settings(gallery_case, optimiser):
    attacks = members(gallery_case, 0, Aim(Away(), gallery_case.embeddings), optimiser)
    assert attacks[0].optimiser == optimiser
    assert sorted(member.name for member in attacks) == ["apgd", "apgd_hinge", "square"]


@pytest.mark.parametrize("nearest", [-1, 10_000])
def test_too_many_targets_are_refused(gallery_case, nearest):
    with pytest.raises(ValueError, match=r"`attack.nearest` must lie between 0 and"):
        members(gallery_case, nearest, Aim(Away(), gallery_case.embeddings), Wiener())
