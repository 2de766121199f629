"""The benchmarks of speed and memory: contestants alternate, and all compute the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import Linf, load_encoder
from scripts.benchmarks import commands, engine, memory, peers, rare, steps, verdict
from scripts.benchmarks.case import PIPELINE, GradientCase
from scripts.benchmarks.contest import Contestant, Counting, Setting
from scripts.benchmarks.strength_case import strength_bank, strength_pictures, task
from scripts.benchmarks.table import MISSING
from scripts.benchmarks.timing import astronaut, median_seconds
from transforms import Compose, Sobol


def test_every_contestant_runs_once_a_round_in_changing_order():
    calls = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    medians = median_seconds(runs, rounds=6)
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 7 and all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 1
    assert set(medians) == {"a", "b", "c"} and all(seconds >= 0 for seconds in medians.values())


def test_the_options_are_the_arguments_of_a_benchmark():
    parse = commands.parser().parse_args
    assert all(parse([name]).benchmark == name for name in commands.BENCHMARKS)
    options = vars(parse(["strength", "--cells", "a", "b", "--pictures", "4", "--held-out", "8"]))
    assert options["cells"] == ["a", "b"] and options["pictures"] == 4
    assert (options["held_out"], options["seeds"], options["threads"], options["out"]) == (8, 2, 1, None)
    assert parse(["engine", "--arch", "pocket"]).arch == ["pocket"]
    assert "rare" in commands.parser().format_help()
    for line in ("engine --rounds 0", "memory --views 8 -1", "rare --repeats x", "engine --arch vgg"):
        with pytest.raises(SystemExit):
            parse(line.split())


@pytest.fixture
def case():
    """A small encoder, and a picture away from black and white, where a sign step would be clipped."""

    def network():
        torch.manual_seed(1)
        layers = [nn.Conv2d(3, 8, 5, 2), nn.Tanh(), nn.Conv2d(8, 8, 5, 2), nn.Tanh(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(8 * 9 * 9, 16)).eval()

    frozen, image = network().requires_grad_(False), 0.1 + 0.8 * astronaut(48)
    return GradientCase(image, Sobol()(6, PIPELINE.dims, seed=0), frozen, network(), frozen(image))


def two_resamples(image, u):
    """Our four stages, resampled after each of the two warps, as in the handwritten loop."""
    views = image.expand(len(u), -1, -1, -1)
    for stage, part in zip(PIPELINE.stages, u.split([stage.dims for stage in PIPELINE.stages], -1), strict=True):
        views = Compose([stage], antialias=False)(views, part)
    return views


def expected(case, views):
    """The gradient of the mean cosine in one graph."""
    leaf = case.image.clone().requires_grad_()
    losses = F.cosine_similarity(case.frozen(views(leaf, case.u)), case.anchor, dim=1)
    return torch.autograd.grad(losses.mean(), leaf)[0]


def cosine(a, b):
    return F.cosine_similarity(a.flatten(), b.flatten(), dim=0)


STEP = Setting(0.25, 6)
DECISION = engine.Decision(layout="channels_last", precision="float32", fold=False, chunk=4)


def test_our_gradient_is_that_of_one_graph(case):
    reference = expected(case, PIPELINE)
    torch.testing.assert_close(engine.our_step(case, DECISION)(), reference, rtol=1e-4, atol=1e-6)
    other = expected(case, lambda leaf, u: PIPELINE(leaf, u.roll(1, 1)))
    assert cosine(other, reference) < 0.9  # other views give another gradient


def test_auto_uses_the_search_of_the_engine(case):
    assert engine.decision_of_auto(case).measurements[0].taken


def test_the_bare_encoder_sees_the_same_views(case):
    ready = PIPELINE(case.image, case.u).requires_grad_()
    losses = F.cosine_similarity(case.frozen(ready), case.anchor, dim=1)
    torch.testing.assert_close(engine.bare(case, DECISION)(), torch.autograd.grad(losses.sum(), ready)[0])


def test_handwritten_loop_has_the_same_views(case):
    theirs, ours = peers.kornia_views(case.image, case.u), two_resamples(case.image, case.u)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)
    for _ in range(2):  # gradients do not accumulate
        assert cosine(peers.kornia_loop(case, STEP)(), expected(case, two_resamples)) > 0.999


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
@pytest.mark.parametrize("name", ["ART", "torchattacks", "Foolbox"])
def test_gradient_of_each_peer_equals_ours(name, case):
    pytest.importorskip(peers.PEERS[name].module, exc_type=ImportError)
    run, reference = peers.PEERS[name].prepare(case, STEP), expected(case, PIPELINE)
    for _ in range(2):  # the second step sees the same views
        gradient = run()
        if name != "ART":  # the other peers take a sign step
            torch.testing.assert_close(gradient.abs().max().item(), case.eps / 4, rtol=1e-3, atol=0)
            reference = reference.sign()
        assert cosine(gradient, reference) > 0.99


def test_classifier_loss_of_peers_equals_the_cosine_loss(case):
    views, first = PIPELINE(case.image, case.u), torch.zeros(6, dtype=torch.long)
    cosines = F.cosine_similarity(case.frozen(views), case.anchor, dim=1)
    logs, linear = (model(case)(views) for model in (peers.LogProbabilities, peers.MeanLogit))
    torch.testing.assert_close(F.cross_entropy(logs, first, reduction="none"), 2 - cosines)
    torch.testing.assert_close(linear, torch.stack([cosines, 0 * cosines], 1))


def test_a_step_and_the_bare_encoder_have_as_many_views(case):
    counting = Counting(case.frozen).eval()
    runs = steps.step_and_bare(counting, case.image, PIPELINE, 4)
    for name, count in (("step", 4), ("bare", 4), ("step", 4)):
        before = counting.gradients
        runs[name]()
        assert counting.gradients - before == count, name


def test_a_verdict_is_timed_to_the_cosine_that_all_reach(monkeypatch):
    monkeypatch.setattr(verdict, "GRADIENTS", (2, 8))
    cosines = {("ours", 2): 0.4, ("ours", 8): 0.2, ("loop with kornia", 2): 0.6, ("loop with kornia", 8): 0.5}
    monkeypatch.setattr(
        verdict, "judged_attack", lambda name, question, _: (question.evals, cosines.get((name, question.evals), 0.5))
    )
    table = verdict.compare_verdicts("pocket", 1, 4)
    assert table.rows["ours"] == (2, 8, 0.2) and table.rows["loop with kornia"] == (8, 8, 0.5)


@pytest.mark.slow
def test_a_loop_with_kornia_is_judged_in_the_views_of_ours():
    question = task(load_encoder().eval(), strength_pictures(1, "table"), Linf(16 / 255), PIPELINE, 16, 0)
    clean = question.score(question.image, strength_bank(PIPELINE, 16, "table")).mean()
    for name in ("ours", "loop with kornia"):
        seconds, mean_cosine = verdict.judged_attack(name, question, 16)
        assert seconds > 0 and mean_cosine < clean - 0.05, name


@pytest.fixture
def in_this_process(monkeypatch):
    """Run in this process what would run in a fresh one."""
    monkeypatch.setattr(engine, "in_fresh_process", lambda work, *arguments: work(*arguments))


@pytest.mark.slow
def test_the_table_of_engines_has_the_ratio_to_the_bare_encoder(monkeypatch, in_this_process):
    kornia = {"kornia, one graph": peers.PEERS["kornia, one graph"]}
    monkeypatch.setattr(engine, "PEERS", kornia | {"absent": Contestant("no_such_module", None)})
    monkeypatch.setattr(
        engine, "decision_of_auto", lambda question: engine.Choice(DECISION, ())
    )  # measured elsewhere
    (table,) = engine.run(rounds=1, arch=["pocket"], views=2)
    assert list(table.rows) == [engine.BARE, engine.BARE32, engine.FLOAT32, engine.AUTO, *kornia, "absent"]
    assert table.rows["absent"] == MISSING in str(table)
    for time, ratio, peak in list(table.rows.values())[:-1]:
        assert time > 0 and peak >= 0 and ratio == pytest.approx(time / table.rows[engine.BARE][0])


@pytest.mark.slow
def test_memory_is_measured_for_each_number_of_views():
    (table,) = memory.run(rounds=1, views=(2, 4))
    first, second, *_ = table.rows["pocket"]  # the times are of a busy machine
    assert list(table.columns)[:2] == ["2", "4"] and min(first, second) > 0
    assert memory.straight_line((2, 4), (0.5, 0.8)) == pytest.approx((0.2, 0.15))


def test_the_tensors_peak_is_counted_to_the_byte():
    def work():
        first = torch.ones(3 * memory.MIB, dtype=torch.uint8)
        del first
        two_tensors = torch.ones(2 * memory.MIB, dtype=torch.uint8), torch.ones(2 * memory.MIB, dtype=torch.uint8)
        return two_tensors[0]

    assert memory.tensor_peak(work, "cpu") == 4 * memory.MIB


def test_the_study_of_rare_failures_names_its_worst_cells():
    (table,) = rare.run(cells=("1-plane-1e-05-d6", "island-plateau-1e-06-d2"), repeats=3, particles=50)
    (plane, island) = table.rows.values()
    assert plane[0] == 1 and 0.5 < plane[2] < 2 and plane[4] is None
    assert island[0] == 1 and island[2:5] == (0, 1, 1)  # missed, and the words say so
    assert "worst limit: " in str(table) and table.notes[1].endswith("1-plane-1e-05-d6")
