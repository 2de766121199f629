"""The comparison of attacks: all have the same task, the same budget and the same score."""

import pytest
import torch

from attacks import Patch
from attacks.data.gallery import tiles
from scripts.benchmarks import strength, strength_case, strength_peers
from scripts.benchmarks.contest import OURS, Contestant, Counting, Setting
from scripts.benchmarks.peers import art_patch
from scripts.benchmarks.processes import processes
from scripts.benchmarks.strength import Cell, Comparison, Job, marks, reached, work
from scripts.benchmarks.strength_case import Centred, Trace, group, held_out, network, pictures
from scripts.benchmarks.strength_peers import CONTESTANTS, PATCHES, QUAD, SIDE, NewView, pasted, rule
from transforms.compose import seen

LIBRARIES = ("torchattacks", "ART", "Foolbox", "ART, Adam", "ART, pgd")
CELL, PATCH = Cell("pocket", 8, 16), Cell("pocket", None, 16)


def job(name, setting=None, *, cell=None, at=(16,), total=2, first=0):
    cell = (cell or (CELL if name in CONTESTANTS else PATCH))._replace(evals=at[-1])
    setting = setting or cell.contestants[name].default(cell.radius, at[-1])
    return Job(cell, name, setting, total, first, at, 8)


@pytest.fixture
def question():
    return group("pocket", pictures(2, "evaluate"), 8 / 255, (16,), 0)


@pytest.fixture
def shown(monkeypatch):
    """The coordinates of all views that the contestants draw."""
    pipeline, views = strength_peers.PIPELINE, []

    class Watched:
        dims = pipeline.dims

        def __call__(self, images, u):
            views.extend(u.tolist())
            return pipeline(images, u)

    monkeypatch.setattr(strength_peers, "PIPELINE", Watched())
    return views


def by_hand(question, setting):
    """A contestant of this file: sign steps, a view at a time."""
    trace = Trace(question.marks)
    show, attacked = NewView(question, trace), question.image
    for _ in range(question.evals):
        leaf = attacked.clone().requires_grad_()
        (grad,) = torch.autograd.grad(question.loss(question.ordinary, show(leaf)).sum(), leaf)
        move = attacked - setting.step * question.eps * grad.sign() - question.image
        attacked = (question.image + move.clamp(-question.eps, question.eps)).clamp(0, 1)
    return trace.end(attacked)


HAND = Contestant("math", by_hand, lambda eps, evals: Setting(0.05, 1), (Setting(0.01, 1), Setting(0.3, 1)))


@pytest.mark.parametrize(("cell", "distinct"), [(CELL, 16), (PATCH, 32)])
def test_our_attack_spends_its_budget_on_the_given_views(shown, cell, distinct):
    outcome = work(job(OURS, cell=cell))
    assert (outcome.gradients, outcome.forwards) == (2 * 16, 0)
    assert len(shown) == 2 * 16
    assert len({tuple(u) for u in shown}) == distinct  # always new; without a patch two pictures share their views


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("setting", [None, Setting(0.2, 4)])
def test_library_spends_the_same_budget_on_the_same_pipeline(shown, name, setting):
    task = job(name, setting)
    pytest.importorskip(task.cell.contestants[name].module, exc_type=ImportError)
    outcome = work(task)
    assert outcome.gradients == 2 * 16 and outcome.forwards <= 1  # ART's patch runs the encoder on one picture first
    assert len(shown) == outcome.gradients + outcome.forwards
    assert len({tuple(u) for u in shown}) >= 16
    low, high = torch.tensor(shown).aminmax()
    assert low < 0.05 and high > 0.95  # the whole cube


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARIES)
def test_point_of_a_library_curve_equals_an_attack_of_that_length(name):
    setting = Setting(0.05, 2, 1.0 if name == "ART" else None)
    task = job(name, setting, at=(8, 16))
    pytest.importorskip(task.cell.contestants[name].module, exc_type=ImportError)
    whole, short = work(task), work(job(name, setting, at=(8,)))
    torch.testing.assert_close(whole.curve[8], short.curve[8], rtol=0, atol=2e-3)  # not rounded during the attack
    assert whole.curve[8].mean() > whole.curve[16].mean()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_art_patch_lies_at_the_same_place_as_ours(question):
    pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    texture = (torch.rand(3, SIDE, SIDE) * 255).round() / 255
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(question.image[0].numel(), 2))
    where = {"patch_shape": tuple(texture.shape), "patch_location": (SIDE, SIDE), "rotation_max": 0.0}
    views = art_patch(network, question.image, **where)._random_overlay(question.image, texture)
    torch.testing.assert_close(views, pasted(question.image, texture[None]), rtol=0, atol=1e-6)


def test_our_patch_lies_where_it_is_pasted(question):
    texture = (torch.rand(1, 3, SIDE, SIDE) * 255).round() / 255
    attacked = seen(Patch((SIDE, SIDE), QUAD).scene(question.image, texture))
    torch.testing.assert_close(attacked, pasted(question.image, texture), rtol=0, atol=1e-5)


def test_our_patch_changes_only_its_square_and_lowers_the_score(question):
    attacked = PATCHES[OURS].run(question, rule(16))[16]
    outside = torch.ones(96, 96, dtype=torch.bool)
    outside[SIDE : 2 * SIDE, SIDE : 2 * SIDE] = False
    assert torch.equal(attacked[..., outside], question.image[..., outside])
    torch.testing.assert_close(attacked[0, :, ~outside], attacked[1, :, ~outside])  # one texture for both
    grey, views = pasted(question.image, torch.full((1, 3, SIDE, SIDE), 0.5)), held_out("evaluate", 8)
    whole = group("pocket", question.image, 1.0, (16,), 0)
    assert whole.score(attacked, views).mean() < whole.score(grey, views).mean() - 0.1


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
def test_torchattacks_and_foolbox_agree_for_the_same_setting():
    """Without momentum, torchattacks and Foolbox are one algorithm, started alike and shown the same views."""
    for module in ("torchattacks", "foolbox"):
        pytest.importorskip(module, exc_type=ImportError)
    first, second = (work(job(name, Setting(0.2, 2))) for name in ("torchattacks", "Foolbox"))
    torch.testing.assert_close(first.cosine, second.cosine, rtol=0, atol=1e-3)


def test_job_does_not_depend_on_earlier_jobs():
    first = work(job(OURS))
    torch.manual_seed(5)
    work(job(OURS, at=(4,)))
    assert torch.equal(work(job(OURS)).cosine, first.cosine)


@pytest.mark.slow
def test_result_does_not_depend_on_the_number_of_processes():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    jobs = [job(OURS, at=(4,), total=6, first=first) for first in (0, 5)]
    with processes(2) as spread:
        for one, other in zip(map(work, jobs), spread(work, jobs), strict=True):
            assert torch.equal(one.cosine, other.cosine)
    torch.set_num_threads(threads)


def test_only_completed_backward_passes_are_counted():
    counting = Counting(torch.nn.Linear(3, 2))
    counting(torch.rand(4, 3))  # a graph without a backward pass
    with torch.no_grad():
        counting(torch.rand(2, 3))
    assert (counting.forwards, counting.gradients) == (6, 0)
    leaf = torch.rand(5, 3, requires_grad=True)
    torch.autograd.grad(counting(leaf).sum(), leaf)
    assert (counting.forwards, counting.gradients) == (11, 5)


def test_settings_are_chosen_on_other_pictures_and_views():
    attacked, others = pictures(12, "evaluate"), pictures(12, "tune")
    assert len(attacked) == 12 and len(others) == strength_case.TUNED
    assert not (attacked[:, None] == others[None]).flatten(2).all(2).any()
    one, other = held_out("evaluate", 16).u, held_out("tune", 16).u
    assert not (one[:, None] == other[None]).all(2).any()


@pytest.mark.parametrize("purpose", ["evaluate", "tune"])
def test_pictures_exclude_those_used_to_choose_our_defaults(purpose):
    for count in strength_case.CHOSEN:
        ours = tiles(strength_case.SIZE).spread(count).images
        assert not (pictures(50, purpose)[:, None] == ours[None]).flatten(2).all(2).any()


def test_scored_picture_is_an_8_bit_file_within_the_ball(question):
    wild = question.file(question.image + torch.randn_like(question.image))
    steps = 255 * (wild - question.image)
    assert steps.abs().max() < 8.001 and (steps - steps.round()).abs().max() < 1e-3
    assert wild.min() >= 0 and wild.max() <= 1
    near = question.image + 3 / 255 * (question.image < 0.5)
    torch.testing.assert_close(question.file(near), near)


def test_each_view_is_compared_with_its_own_picture(question):
    rows = question.image.repeat_interleave(3, 0)
    torch.testing.assert_close(question.loss(question.frozen, rows), torch.ones(6))
    assert question.loss(question.frozen, question.image.flip(0)).max() < 0.9


def test_an_encoder_without_training_can_be_moved_when_centred():
    """Without their common mean, the embeddings no longer have cosines near 1."""
    images, centred = pictures(4, "evaluate"), network("resnet18")
    assert isinstance(centred, Centred)

    def likeness(embeddings):
        return torch.corrcoef(embeddings)[~torch.eye(4, dtype=torch.bool)].mean()

    with torch.no_grad():
        assert likeness(centred(images)) < 0.5 < 0.9 < likeness(centred.encoder(images))


def test_trace_has_the_pictures_at_each_number_of_evaluations():
    trace = Trace((1, 4, 6))
    for step in range(3):  # two views each
        trace.record(torch.tensor([step]), 2 * step, 2)
    assert {mark: int(value) for mark, value in trace.end(torch.tensor([3])).items()} == {1: 0, 4: 2, 6: 3}


def test_share_of_the_budget_is_interpolated_on_the_curve():
    points = [(16, 0.8), (64, 0.6), (256, 0.5)]
    assert reached(points, 0.7, 256) == pytest.approx(32 / 256)  # half way on a logarithmic axis
    assert reached(points, 0.5, 256) == 1
    assert reached(points, 0.9, 256) == 16 / 256
    assert reached(points, 0.4, 256) is None


def test_marks_and_our_rule_fit_any_budget():
    for evals in (1, 16, 48, 256, 1024):
        assert marks(evals)[-1] == evals and len(set(marks(evals))) == len(marks(evals))
        for mark in marks(evals):
            assert mark // rule(mark).views * rule(mark).views == mark


@pytest.mark.slow
def test_table_gives_each_contestant_and_its_difference_to_ours(monkeypatch):
    contestants = {OURS: CONTESTANTS[OURS], "hand": HAND, "absent": Contestant("no_such", None, None)}
    monkeypatch.setattr(strength, "CONTESTANTS", contestants)
    whole, rows, curve = strength.run(["pocket"], 2, [16], [8], no_patch=True, held_out=8)
    assert list(rows.rows) == [OURS, "hand", "hand, tuned", "absent"]
    assert rows.rows["absent"] == "not installed"
    assert "hand, tuned: step 0.3 eps, 1 views" in rows.notes
    assert rows.rows["hand, tuned"][0] < rows.rows["hand"][0]
    for row in ("hand", "hand, tuned"):
        assert rows.rows[row][1] == pytest.approx(rows.rows[row][0] - rows.rows[OURS][0], abs=1e-6)
    assert all(row[-2:] == (16, 0) for row in rows.rows.values() if row != "not installed")
    mine, theirs, difference, low, high, share = whole.rows["pocket 8/255 16"]
    assert (mine, theirs) == (rows.rows[OURS][0], rows.rows["hand, tuned"][0])
    assert low <= difference <= high and difference == pytest.approx(mine - theirs, abs=1e-6)
    assert (share is None) == (mine > theirs)
    assert set(curve.rows) == {OURS, "hand", "hand, tuned"}
    for row, points in curve.rows.items():  # with 8 views both have the same
        assert points[-1] == pytest.approx(rows.rows[row][0])
    assert str(whole) and str(rows) and str(curve)


def test_best_peer_has_the_lowest_mean_and_is_never_ours():
    means = {OURS: 0.1, "ours, APGD": 0.0, "a": 0.5, "a, tuned": 0.4}
    outcomes = {row: strength.Outcome(torch.full((2, 4), mean), {}, 1, 0) for row, mean in means.items()}
    assert Comparison(CELL, {}, {}, outcomes).best == "a, tuned"


def test_interval_of_a_patch_treats_each_group_as_one_sample():
    # All pictures of a group share one texture: ten of them are no more informative than two.
    own = torch.randn(4, 1).repeat_interleave(5, 0) + 0.01 * torch.randn(20, 6)
    groups, pictures = (Comparison(cell, {}, {}, {}).apart(own) for cell in (PATCH, CELL))
    assert groups[0] == pytest.approx(pictures[0], abs=1e-6)
    assert groups[2] - groups[1] > 1.5 * (pictures[2] - pictures[1])
