"""The comparison of attacks: all have the same task, the same budget and the same score."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import L2, Linf
from scripts.benchmarks import strength, strength_case
from scripts.benchmarks.contest import OURS, Counting, Setting
from scripts.benchmarks.peers import eotpgd
from scripts.benchmarks.strength import ALL_PEERS, CellResult, StrengthCell, StrengthJob, strength_outcome
from scripts.benchmarks.strength_case import BALLS, SIZE, anchor_of, strength_bank, strength_pictures, task
from scripts.benchmarks.strength_encoders import AUGMENT, TRAINED_ENCODERS, small_network, train_network
from scripts.benchmarks.strength_peers import CONTESTANTS, Ask, NewView, fits, losses_of_views, shares
from scripts.benchmarks.strength_queries import QUERY_CONTESTANTS, WHITE_BOX
from scripts.pocket.training import contrastive_loss
from transforms import Affine, Brightness, Compose

#: Among them no view is the picture itself, so that an attack can start there.
ROTATIONS = Compose([Affine(degrees=(10, 20)), Brightness(0.1)])
LIBRARIES = [name for name, entry in CONTESTANTS.items() if entry.module not in ("attacks", "torch")]
SLOW = pytest.mark.slow


def tiny():
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 5, 3), nn.Tanh(), nn.Conv2d(8, 8, 5, 3), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 6 * 6, 16)).eval().requires_grad_(False)


def question(ball="linf8", evals=16, views=ROTATIONS, goal="away", **changes):
    """Eight pictures away from black and white: some libraries average over a batch, and a power of two is exact."""
    images, encoder = 0.1 + 0.8 * strength_pictures(8, "table"), tiny()
    anchor = anchor_of(goal, encoder, images, images)
    return replace(task(encoder, images, BALLS[ball](SIZE), views, evals, 0, anchor), **changes)


@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.peers if name in LIBRARIES else SLOW) for name in CONTESTANTS]
)
@pytest.mark.parametrize("goal", ["away", "toward", "class"])
@pytest.mark.parametrize("ball", ["linf8", "l2", "patch"])
def test_an_attack_spends_its_budget_and_stays_in_the_ball(name, ball, goal):
    if not fits(name, ball):
        pytest.skip("not for this ball")
    pytest.importorskip(CONTESTANTS[name].module, exc_type=ImportError)
    problem, views = question(ball, goal=goal), 4 if goal == "away" else 2
    setting = Setting(0.3, views) if name in LIBRARIES else Setting(0.3, views, 1.0, "cosine", size=0.1)
    attacked_images = CONTESTANTS[name].prepare(problem, setting)()
    limit = 8 * 16 * 11 / 9 if name == OURS else 8 * 16  # it chooses an iterate by further forward passes
    assert problem.counter.gradients == 8 * 16 <= problem.counter.forwards <= limit
    assert problem.ball.norm(attacked_images - problem.image).max() <= problem.eps * 1.001
    change = attacked_images - problem.image
    assert torch.equal(problem.ball.restrict(change), change)
    bank = strength_bank(ROTATIONS, 16, "table")
    assert problem.score(attacked_images, bank).mean() < problem.score(problem.image, bank).mean()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=SLOW if entry.module == "attacks" else pytest.mark.peers)
        for name, entry in QUERY_CONTESTANTS.items()
        if name != WHITE_BOX
    ],
)
@pytest.mark.parametrize("views", [Compose(), ROTATIONS], ids=["one view", "views"])
def test_an_attack_that_asks_spends_its_queries(name, views):
    pytest.importorskip(QUERY_CONTESTANTS[name].module, exc_type=ImportError)
    problem = question(evals=80, views=views)
    attacked_images = QUERY_CONTESTANTS[name].prepare(problem, Setting(0.3, 4, size=4 if name == "NES" else 0.5))()
    # Ours compares iterates on further views. A library may leave a few queries, or ask once more at the end.
    limit = 80 * 11 / 9 if QUERY_CONTESTANTS[name].module == "attacks" else 80 + 4
    assert problem.counter.gradients == 0 and 70 <= problem.counter.forwards / 8 <= limit
    assert problem.ball.norm(attacked_images - problem.image).max() <= problem.eps * 1.001
    bank = strength_bank(views, 16 if views.dims else 1, "table")
    assert problem.score(attacked_images, bank).mean() < problem.score(problem.image, bank).mean()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("views", [1, 4])
def test_pgd_by_hand_equals_torchattacks_on_the_same_views(views):
    """Shown the same views, started at the same point: a sign may differ where a gradient is zero to rounding."""
    pytest.importorskip("torchattacks", exc_type=ImportError)
    setting, fixed_start = Setting(0.25, views), Linf(8 / 255, random_start=False)
    first, second = question(), question()
    first = replace(first, ball=fixed_start)
    theirs = eotpgd(second, NewView(second), setting, 16 // views, random_start=False)()
    differences = (CONTESTANTS["PGD"].prepare(first, setting)() - theirs).abs()
    assert (theirs - second.image).abs().max() > 7.9 / 255
    assert (differences > 1e-6).float().mean() < 1e-3


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_mifgsm_by_hand_equals_torchattacks():
    module = pytest.importorskip("torchattacks", exc_type=ImportError)
    problem = question(ball="linf8", views=Compose([Affine(degrees=(15, 15))]))  # one view, always the same
    problem = replace(problem, ball=Linf(8 / 255, random_start=False))

    class Model(nn.Module):
        def forward(self, images):
            mean = losses_of_views(problem, NewView(problem), images, 1)[0]
            return torch.stack([mean, torch.full_like(mean, 30)], 1)  # its cross-entropy is 30 less the cosine

    attack = module.MIFGSM(Model().eval(), eps=8 / 255, alpha=2 / 255, steps=16, decay=1.0)
    theirs = attack(problem.image, torch.zeros(8, dtype=torch.long))
    differences = (CONTESTANTS["MI-FGSM"].prepare(problem, Setting(0.25, 1, 1.0))() - theirs).abs()
    assert (theirs - problem.image).abs().max() > 7.9 / 255
    assert (differences > 1e-6).float().mean() < 1e-3


def test_adam_by_hand_takes_the_steps_of_the_paper():
    problem = question(evals=2)
    problem = replace(problem, ball=Linf(8 / 255, random_start=False))
    delta, m, v, ask, setting = torch.zeros_like(problem.image), 0, 0, Ask(problem), Setting(0.2, 1)
    for k, share in enumerate(shares(problem, setting), 1):
        gradient = ask(delta, 1)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        step = (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-16)
        delta = (delta - share * problem.eps * step).clamp(-problem.eps, problem.eps)
    attacked_images = CONTESTANTS["Adam"].prepare(problem, setting)()
    torch.testing.assert_close(attacked_images, problem.image + delta, rtol=0, atol=1e-5)


def test_steps_fall_along_half_a_cosine():
    lengths = [*shares(question(), Setting(0.4, 4, schedule="cosine"))]
    assert lengths == pytest.approx([0.4 * math.cos(math.pi * k / 8) ** 2 for k in range(4)])


def test_gradient_is_that_of_the_mean_cosine_of_each_picture():
    problem, delta = question(), 0.01 * torch.randn(8, 3, 64, 64)
    gradient = Ask(problem)(delta, 4)
    rows = torch.rand(4 * 8, ROTATIONS.dims, generator=NewView(problem).generator).view(4, 8, -1)
    for i in (0, 5):  # alone, from its own views
        leaf = (problem.image[i] + delta[i]).clone().requires_grad_()
        embeddings = problem.counter.encoder(ROTATIONS(leaf.expand(4, -1, -1, -1), rows[:, i]))
        loss = F.cosine_similarity(embeddings, problem.anchor[i : i + 1], dim=1).mean()
        torch.testing.assert_close(gradient[i], torch.autograd.grad(loss, leaf)[0], rtol=1e-3, atol=1e-6)


def test_a_goal_is_a_cosine_or_a_probability():
    problem, bank = question(goal="toward"), strength_bank(ROTATIONS, 4, "table")
    embeddings = problem.counter.encoder(problem.image)
    views = ROTATIONS(problem.file(problem.image), bank.u.repeat(8, 1))
    expected = -F.cosine_similarity(problem.counter.encoder(views), embeddings.roll(-1, 0).repeat_interleave(4, 0))
    torch.testing.assert_close(problem.score(problem.image, bank), expected.view(8, 4), rtol=0, atol=1e-5)
    problem = question(goal="class")
    expected = problem.counter.encoder(views).softmax(1).view(8, 4, -1)[torch.arange(8), :, embeddings.argmax(1)]
    torch.testing.assert_close(problem.score(problem.image, bank), expected, rtol=0, atol=1e-5)


def test_only_completed_backward_passes_are_counted():
    counting = Counting(torch.nn.Linear(3, 2))
    counting(torch.rand(4, 3))  # a graph without a backward pass
    with torch.no_grad():
        counting(torch.rand(2, 3))
    assert (counting.forwards, counting.gradients) == (6, 0)
    leaf = torch.rand(5, 3, requires_grad=True)
    torch.autograd.grad(counting(leaf).sum(), leaf)
    assert (counting.forwards, counting.gradients) == (11, 5)


@pytest.mark.slow
def test_settings_are_chosen_on_other_pictures_and_views():
    attacked_images, screen_pictures = strength_pictures(12, "table"), strength_pictures(12, "screen")
    assert len(attacked_images) == 12 and len(screen_pictures) == strength_case.SCREEN_PICTURES
    assert not (attacked_images[:, None] == screen_pictures[None]).flatten(2).all(2).any()
    assert torch.equal(strength_pictures(12, "first"), screen_pictures[:1])
    table_points, other = strength_bank(ROTATIONS, 16, "table").u, strength_bank(ROTATIONS, 16, "screen").u
    assert not (table_points[:, None] == other[None]).all(2).any()


@pytest.mark.parametrize("ball", [Linf(8 / 255), L2(1.0)])
def test_scored_picture_is_an_8_bit_file_within_the_ball(ball):
    images = strength_pictures(2, "table")
    problem = task(tiny(), images, ball, ROTATIONS, 4, 0)
    wild = problem.file(images + torch.randn_like(images))
    assert ball.norm(wild - images).max() <= ball.reach * (1 + 1e-4)
    torch.testing.assert_close(255 * wild, (255 * wild).round(), rtol=0, atol=1e-3)
    assert wild.min() >= 0 and wild.max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", TRAINED_ENCODERS)
def test_training_brings_a_picture_and_its_view_together(arch):
    images = strength_pictures(32, "table")
    views = AUGMENT(images, torch.rand(32, AUGMENT.dims, generator=torch.Generator().manual_seed(0)))

    def loss(encoder):
        with torch.no_grad():
            return float(contrastive_loss(*(encoder.eval()(part) for part in (images, views))))

    assert loss(train_network(arch, 24, 40)) < loss(small_network(arch)) - 0.3


CELL = StrengthCell("pocket", "camera", "linf8", 16)


@pytest.fixture
def job(tmp_path):
    return StrengthJob(CELL._replace(evals=4), OURS, Setting(0, 1), "table", 0, 2, 8, tmp_path)


def test_finished_job_is_not_run_again(job, monkeypatch):
    first = strength_outcome(job)
    assert len(first) == 2 and job.file.exists()
    monkeypatch.setattr(strength, "CONTESTANTS", {})  # whatever would run fails
    assert strength_outcome(job) == first
    with pytest.raises(KeyError):
        strength_outcome(replace(job, seed=1))


@pytest.mark.slow
def test_table_gives_the_best_setting_of_each_peer(monkeypatch, tmp_path):
    pgd = replace(CONTESTANTS["PGD"], grid=tuple(Setting(step, 1) for step in (0.001, 0.3, 0.002, 0.003)))
    contestants = {OURS: CONTESTANTS[OURS], "PGD": pgd, "absent": replace(pgd, module="no_such")}
    monkeypatch.setattr(strength, "CONTESTANTS", contestants)
    monkeypatch.setattr(strength, "CELLS", (CELL,))
    verdicts, shares_of_gradients, rows = strength.run(pictures=4, seeds=2, held_out=8, jobs=str(tmp_path))
    assert list(rows.rows) == [OURS, "PGD", "absent"] and rows.rows["absent"] == "not installed"
    assert rows.notes[1:] == ("PGD: step 0.3 eps, 1 views",)
    theirs, difference, low, high = rows.rows["PGD"]
    assert low <= difference <= high and difference == pytest.approx(theirs - rows.rows[OURS][0], abs=1e-9)
    assert sum(verdicts.rows[ALL_PEERS][:3]) == 1 and str(rows) and str(verdicts)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    # One picture chooses two, which all choose from; ours and PGD in the table, ours with fewer gradients, too.
    assert len(files) == 4 + 2 + 2 + 2 + 3 * 2 and shares_of_gradients.rows["pocket"][1] == 1
    strength.run(pictures=4, seeds=2, held_out=8, jobs=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == files


def comparison(**means):
    """Contestants whose pictures lie evenly round a mean, each with its own pattern."""

    def outcome(mean, k):
        return [mean + 0.01 * math.sin(k + i) for i in range(20)]

    outcomes = {name: [outcome(mean, k)] for k, (name, mean) in enumerate(means.items())}
    peers = {name: Setting(0.1, 1) for name in means if name != OURS}
    return CellResult(StrengthCell("pocket", "camera", "linf8", 64), peers, outcomes, {})


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ({OURS: 0.1, "a": 0.2, "b": 0.3}, "lowest"),
        ({OURS: 0.2, "a": 0.2, "b": 0.3}, "level"),
        ({OURS: 0.2, "a": 0.1, "b": 0.3}, "beaten"),
    ],
)
def test_verdict_is_on_every_peer(means, verdict):
    entry = comparison(**means)
    assert entry.verdict == verdict and entry.table().notes[0] == f"ours: {verdict}"
    table = strength.verdict_table([entry, comparison(ours=0.1, a=0.2)])
    assert table.rows[ALL_PEERS][:3] == tuple(
        float(name == verdict) + (name == "lowest") for name in ("lowest", "level", "beaten")
    )
    assert table.rows["a"][:3] == table.rows[ALL_PEERS][:3] and table.rows["b"][:3] == (1, 0, 0)


def test_interval_is_over_pictures_not_over_seeds():
    first_result, second_result = comparison(ours=0.2, a=0.3), comparison(ours=0.2, a=0.3)
    for cosines in second_result.cosines.values():
        cosines[:] = [cosines[0]] * 2
    assert first_result.difference("a") == pytest.approx(second_result.difference("a"))
