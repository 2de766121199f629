"""Which iterate is kept, when a picture leaves, and what both cost."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attacks import EOT, PGD, Linf, attack
from attacks.encoders.contract import check_encoder
from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser
from attacks.eot.risk import CVaR
from attacks.optimisers.square import Square
from attacks.perturbations.universal import Universal
from attacks.solvers.selection import LEAVES, LOOKS, NOISE, REFERENCE, Selection, overfitting, plan_for, selection
from tests.helpers.solving import VIEWS, Dot, small_problem, watch
from transforms import Compose
from transforms.draws import Uniform

STEPS = 60


@pytest.fixture
def problem():
    """Four pictures attacked on the pictures themselves, and how an attack on views would choose."""
    torch.manual_seed(0)
    images, anchor, parts = small_problem(4)
    parts |= {"eot": EOT(views=1), "steps": STEPS}
    of_views = parts | {"eot": EOT(VIEWS, Uniform(), views=4, chunk=9, risk=CVaR(0.5)), "seed": 8}
    return images, anchor, parts, choice(images, anchor, of_views)


def choice(images, anchor, parts):
    arguments = dict(parts)
    problem = Problem(
        images, anchor, arguments.pop("encoder"), arguments.pop("objective"), arguments.pop("perturbation")
    )
    return selection(problem, Options(**arguments))


@given(passes=st.integers(0, 5000), views=st.sampled_from([1, 8, 32]))
def test_looks_take_at_most_a_tenth_of_all_passes_wherever_a_run_ends(passes, views):
    plan = plan_for(passes, views)
    assert 1 <= plan.screen <= plan.full <= views
    if not plan.looks:
        assert plan.screen == 1 and passes / 9 - 1 < 2  # two looks would be too many
        return
    assert (len(plan.looks) + 1) * plan.screen + 2 * (plan.full - plan.screen) <= passes / 9
    assert list(plan.looks) == sorted(plan.looks)
    for number, share in enumerate(plan.looks, 1):  # a picture may leave here
        assert number * plan.screen <= share * passes / 9 or share < LEAVES or len(plan.looks) == 1


def test_a_run_of_126_gradients_has_the_looks_that_the_check_of_its_plateau_needs():
    assert len(plan_for(2 * 126).looks) + 1 == 5 > len(plan_for(2 * 125).looks) + 1  # docs/sanity_checks.md names it


class PassCounter(nn.Module):
    """An encoder that counts the pictures it encodes, with and without a gradient."""

    def __init__(self, net):
        super().__init__()
        self.net, self.backward, self.plain = net, 0, 0

    def forward(self, images):
        self.backward += len(images) * images.requires_grad
        self.plain += len(images) * (not images.requires_grad)
        return self.net(images)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    steps=st.integers(1, 40),
    views=st.sampled_from([1, 2, 4, 7]),
    count=st.integers(1, 3),
    shared=st.booleans(),
    optimiser=st.sampled_from([PGD(), PGD(1.0, 0.0, "constant"), Square()]),
)
def test_an_attack_spends_at_most_a_tenth_of_its_passes_on_choosing(steps, views, count, shared, optimiser):
    images, anchor, parts = small_problem(count, torch.float32)
    parts["perturbation"] = Universal(Linf(0.1)) if shared else Linf(0.1)
    eot, encoder = EOT(VIEWS, Uniform(), views=views), PassCounter(parts["encoder"]).eval()
    check_encoder(encoder, images)
    encoder.plain = 0
    parts |= {"encoder": encoder, "steps": steps, "eot": eot, "optimiser": optimiser}
    *_, (step, best) = watch(images, anchor, **parts)
    moving = step.evals * (1 if optimiser.gradient_free else 2)
    choosing = encoder.plain + encoder.backward - step.evals
    is_short = moving / count < 2 * 9  # one view of the last iterate
    assert choosing <= (count if is_short else moving / 9)
    assert best is not None


class Replay(Optimiser):
    """Puts each picture's delta where a table says: (steps,N) values in [-1,1], times eps."""

    def __init__(self, table):
        self.table = table

    def init(self, delta, *, reach, steps):
        return 0

    def step(self, delta, estimate, state, constraint, done):
        return 0.1 * self.table[state][:, None, None, None].to(delta) * torch.ones_like(delta), state + 1


@dataclass(frozen=True)
class Mean(Dot):
    """The mean of the features: the mean of the pixels, for `Pixels`."""

    def __call__(self, features, anchor):
        return features.flatten(1).mean(1)


def replay(table, shared=False, views=8, **options):
    """A run whose loss is 0.5 plus a tenth of the table, but for what brightness and shift of the view add."""
    count = table.shape[1]
    images = torch.full((2 if shared else count, 3, 12, 14), 0.5)
    parts = {"encoder": nn.Flatten().eval(), "objective": Mean(), "seed": 3}
    perturbation = Universal(Linf(0.1, random_start=False)) if shared else Linf(0.1, random_start=False)
    parts |= {"perturbation": perturbation, "optimiser": Replay(table), "steps": len(table)}
    results = list(watch(images, images, eot=EOT(VIEWS, Uniform(), views=views), **parts | options))
    return torch.stack([step.active for step, _ in results]).sum(0), results[-1][1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_good_early_iterate_of_a_diverging_attack_is_the_result(shared):
    table = torch.linspace(-0.3, 1, 32)[:, None]
    table[3], table[7] = -0.9, -1  # after an eighth and a quarter
    _, best = replay(table, shared)
    assert best.step.tolist() == [7] * len(best.step)
    assert best.delta.min() == best.delta.max() == torch.tensor(-0.1)


def test_with_too_few_views_to_show_their_noise_nobody_leaves():
    took, _ = replay(torch.full((32, 1), 0.5), views=1)
    assert took.tolist() == [32]


def schedule(steps):
    return sorted({round(2 ** (k / 2)) for k in range(40) if round(2 ** (k / 2)) <= steps} | {steps})


@pytest.mark.slow
@given(gradients=st.integers(1, 3000))
@settings(max_examples=20, deadline=None)
def test_an_attack_without_views_is_looked_at_after_powers_of_the_root_of_two(gradients):
    plan = overfitting(gradients)
    due = [n for n in range(1, gradients) if plan.due((n - 1) / gradients, n / gradients)]
    assert sorted({*due, gradients}) == schedule(gradients)
    assert schedule(50)[:10] == [1, 2, 3, 4, 6, 8, 11, 16, 23, 32]


def risks(images, anchor, parts, select, deltas, views):
    """The terms (K,N,v), whose mean is the risk, of each picture under each of K deltas on the first views."""
    net, objective = parts["encoder"], parts["objective"]
    bank = select.bank._replace(u=select.bank.u[:views])
    tables = [bank.losses((images + delta).clamp(0, 1), anchor, net, objective, 9) for delta in deltas]
    return torch.stack([views * select.risk.weights(table) * table for table in tables])


def expected(terms, full, due, early):
    """After how many steps a picture's iterate is chosen, and after how many it leaves, from the terms of its looks
    (K,v), and of all views (K,V): from the definition, look by look."""
    means, final = terms.mean(1), len(due) - 1
    for k, share in enumerate(due):
        past_looks = [j for j in range(k) if due[j] <= share * REFERENCE]
        if share / due[-1] < LEAVES or not past_looks or k == final:
            continue
        best = min(past_looks, key=lambda j: means[j])
        gain = terms[best] - terms[k]
        if gain.mean() <= NOISE * gain.std() / len(gain) ** 0.5:
            final = k
            break
    order = sorted(range(final + 1), key=lambda j: means[j])
    if early:
        first, other = order[0], order[1]
        return due[first if full[first].mean() <= full[other].mean() else other], due[final]
    table = full if final == len(due) - 1 else terms
    gap = table[final] - table[order[0]]
    ahead = gap.mean() > NOISE * gap.std() / len(gap) ** 0.5
    return due[order[0] if ahead else final], due[final]


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True], ids=["as eot", "early"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_iterates_and_the_end_follow_the_definition(problem, shared, early):
    images, anchor, parts, select = problem
    plan = overfitting(STEPS) if early else plan_for(300)  # so few gradients of its own would give two looks
    select = replace(select, early=early, plan=plan)
    if shared:
        parts = parts | {"perturbation": Universal(Linf(0.1))}
        anchor = anchor[:1].expand(4, -1)
    due = schedule(STEPS) if early else [*(math.ceil(STEPS * share) for share in LOOKS), STEPS]
    deltas = [step.delta for step in attack(images, anchor, **parts) if step.index + 1 in due]
    tables = [risks(images, anchor, parts, select, deltas, views) for views in (plan.screen, plan.full)]
    if shared:
        tables = [table.mean(1, keepdim=True).expand_as(table) for table in tables]
    steps, results = zip(*watch(images, anchor, select=select, **parts), strict=True)
    took, best = torch.stack([step.active for step in steps]).sum(0), results[-1]
    rule = [expected(tables[0][:, i], tables[1][:, i], due, early) for i in range(4)]
    assert list(zip((best.step + 1).tolist(), took.tolist(), strict=True)) == rule
    for i, (at, _) in enumerate(rule):
        row = 0 if shared else i
        assert torch.equal(best.delta[row], deltas[due.index(at)][row])


def test_without_coordinates_the_bank_is_one_view(problem):
    images, anchor, parts, _ = problem
    select = choice(images, anchor, parts | {"eot": EOT(Compose(), views=4)})
    assert select.bank.u.shape == (1, 0) and select.plan.screen == select.plan.full == 1
    *_, (_, best) = watch(images, anchor, select=replace(select, early=True, plan=overfitting(STEPS, 1)), **parts)
    direct = parts["objective"](parts["encoder"](images + best.delta), anchor)
    torch.testing.assert_close(best.loss, direct)


def test_restarts_are_refused_with_an_early_selection(problem):
    images, anchor, parts, select = problem
    assert isinstance(select, Selection)
    with pytest.raises(ValueError, match="`restarts` must be 1"):
        next(watch(images, anchor, select=replace(select, early=True), restarts=2, **parts))


@pytest.mark.slow
def test_a_look_does_not_depend_on_the_chunk(problem):
    images, anchor, parts, select = problem
    bests = []
    for chunk in (1, 5, 64):
        eot = EOT(VIEWS, Uniform(), views=4, chunk=chunk)
        bests.append(list(watch(images, anchor, select=select, **parts | {"eot": eot, "steps": 40}))[-1][1])
    for other in bests[1:]:
        torch.testing.assert_close(other.delta, bests[0].delta, rtol=0, atol=1e-12)
        assert torch.equal(other.step, bests[0].step)
