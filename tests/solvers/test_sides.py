"""The worst case of a run, beside its mean: the worst views of the held-out bank, refined."""

import json
from types import SimpleNamespace

import pytest
import torch

from attacks import Away, bank, load_encoder
from attacks.data.images import load_image
from attacks.encoders.passes import CountedCalls
from attacks.evaluation.scores import evaluate
from attacks.experiment.bench import Bench
from attacks.experiment.results import table_text
from attacks.experiment.unit import STARTS, worst_cosine
from attacks.report.words import interval_text, number_words
from attacks.runtime.checkpoint import NOWHERE
from attacks.runtime.distributed import ALONE
from attacks.study.pipeline import preset
from tests.helpers.fellows import together
from tests.helpers.report_pages import ARMS
from tests.helpers.solving import VIEWS, small_problem, uphill


@pytest.fixture
def case():
    """Pictures, their clean embeddings, an encoder, a bank and the cosines on it."""
    images, _, parts = small_problem()
    with torch.no_grad():
        net = parts["encoder"]
        embeddings = net(1 - images)
        views = bank(VIEWS, 16, seed=0, purpose="evaluate")
        views = views._replace(u=views.u.double())
        return images, embeddings, net, views, evaluate(images, embeddings, embeddings, encoder=net, bank=views)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("steps", [0, 4])
def test_processes_share_the_passes_and_give_the_result_of_one_process(case, size, steps):
    images, embeddings, net, views, scores = case

    def work(world):
        counter = CountedCalls(net)
        arguments = {"losses": scores.cosine, "refine_steps": steps, "keep": 4, "chunk": 5, "world": world}
        return uphill(images, embeddings, encoder=counter, objective=Away(), views=views, **arguments), counter

    result = together(size, work)
    single = work(ALONE)[0]
    for worst, _ in result:
        torch.testing.assert_close(worst.losses, single.losses, rtol=0, atol=1e-12)
    passes = 3 * 4 * (steps + 1) if steps else 0
    assert (
        sum(result_counter.count.forward for _, result_counter in result)
        == sum(result_counter.count.backward for _, result_counter in result)
        == passes
    )
    # Never better for the attacker than the bank alone, and exact: the returned views have these cosines.
    assert (single.losses >= scores.cosine.sort(1, descending=True).values[:, :4]).all()
    for i in range(3):
        row_score = evaluate(
            images[[i]], embeddings[[i]], embeddings, encoder=net, bank=views._replace(u=single.u[i])
        )
        torch.testing.assert_close(single.losses[[i]], row_score.cosine, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("goal", "bits", "steps"), [(None, False, 3), (torch.arange(3), False, 0), (None, True, 0)])
def test_worst_view_of_the_bank_is_used_without_a_meaningful_gradient(case, goal, bits, steps):
    images, embeddings, net, views, scores = case
    plain = load_encoder("phash") if bits else net
    study = SimpleNamespace(goal=goal, encoder=plain, evaluate=SimpleNamespace(refine=3))
    blank = dict.fromkeys(("module", "encoder", "exact", "judge", "layers", "exhibits"))
    bench = Bench(
        study, ALONE, NOWHERE, None, counter=CountedCalls(net), banks={"same": views}, chunk=8, bare=None, **blank
    )
    assert bench.refine_steps == steps
    rough = scores.cosine.amax(1)
    if goal is not None:  # the worst view of a targeted attack is the one least similar to the target
        like = torch.rand(scores.cosine.shape, generator=torch.Generator().manual_seed(0))
        scores = scores._replace(goal_cosine=like)
        rough = torch.stack([row[int(mine.argmin())] for row, mine in zip(scores.cosine, like, strict=True)])
    result = worst_cosine(bench, images, embeddings, scores)
    assert bench.counter.count.forward == (3 * STARTS * (steps + 1) if steps else 0)
    assert torch.equal(result, rough) if not steps else (result >= rough).all() and (result > rough).any()


@pytest.fixture
def runs(shared_runs):
    """The same small run without refinement and with three steps of it."""
    small = ["config=smoke", "data.count=1", "attack.steps=2", "evaluate.views=8"]
    folders = {steps: shared_runs(*small, f"evaluate.refine={steps}") for steps in (0, 3)}
    return folders, {steps: json.loads((folder / "metrics.json").read_text()) for steps, folder in folders.items()}


@pytest.mark.nightly
def test_run_reports_the_refined_worst_case_and_its_cost(runs):
    folders, contents = runs
    rough, fine = contents[0], contents[3]
    assert [content["bank"].pop("refine") for content in (rough, fine)] == [0, 3]
    for key in ("forward", "backward"):
        assert fine["cost"][key] - rough["cost"][key] == len(ARMS) * STARTS * (3 + 1)
    worst = {arm: [c["arms"][arm].pop("worst_cosine")["mean"] for c in (rough, fine)] for arm in ARMS}
    assert all(end >= start for start, end in worst.values())
    assert any(end > start + 0.01 for start, end in worst.values())
    assert [rough[key] for key in ("arms", "bank")] == [fine[key] for key in ("arms", "bank")]

    # Without steps it is the highest cosine of the bank, for the saved file.
    encoder, views = load_encoder(), bank(preset("camera"), 8, seed=0, purpose="evaluate")
    load = lambda arm: load_image(next((folders[0] / "pictures" / arm).iterdir()))[0][None]  # noqa: E731
    with torch.no_grad():
        embeddings = encoder(load("clean"))
    for arm in ARMS:
        cosine = evaluate(load(arm), embeddings, embeddings, encoder=encoder, bank=views).cosine
        assert worst[arm][0] == pytest.approx(float(cosine.max()), abs=1e-5)


@pytest.mark.slow
def test_worst_case_is_printed_below_the_table_and_in_the_report(runs):
    folders, _ = runs
    for steps, label in ((0, "most resistant view of the bank: "), (3, "most resistant view, refined: ")):
        content = json.loads((folders[steps] / "metrics.json").read_text())
        value = content["arms"]["eot"]["worst_cosine"]
        assert f"\n{label}cosine eot {interval_text(value)}, no_eot " in table_text(content)
        page = (folders[steps] / "report.html").read_text()
        assert "{} <small>{}</small>".format(*number_words(value)) in page
        assert ("refined by 3 gradient" in page) == bool(steps)
