"""An attack resumed from a file after any of its steps ends with the same bits."""

from dataclasses import replace

import pytest
import torch

from attacks import APGD, EOT, PGD, Adam, Away, Linf, Toward, Universal, Wiener, bank
from attacks.eot.adaptive import Adaptive
from attacks.eot.risk import CVaR
from attacks.objectives.aim import Aim
from attacks.optimisers.apgd import APGD as Auto
from attacks.optimisers.gradient import PGD as Descent
from attacks.optimisers.square import Square
from attacks.runtime.values import load_values, write_values
from attacks.solvers.selection import LookPlan, Selection
from attacks.solvers.suite import Member
from attacks.solvers.worst import Adversary
from tests.helpers.small import small, smooth
from tests.helpers.solving import suite, watch
from transforms import Affine, Brightness, Compose
from transforms.draws import Uniform

VIEWS = Compose([Affine(degrees=20, translate=0.1), Brightness(0.2)])
STEPS = 7
EARLY_CHOICE = Selection(
    bank(VIEWS, 8, seed=0, purpose="select"), CVaR(0.5), LookPlan((0.05, 0.1, 0.15, 0.3, 0.55), 4, 8), early=True
)
RUNS = {
    "nesterov": {"optimiser": Descent(nesterov=True)},
    "adam": {"optimiser": Adam()},
    "apgd": {"optimiser": APGD()},
    "wiener": {"optimiser": Wiener()},
    "adaptive": {"eot": EOT(VIEWS, Uniform(), views=1, chunk=64), "adaptive": Adaptive(2), "budget": 20, "steps": 20},
    "budgets": {"budget": torch.tensor([6, 14])},
    "adversary": {"adversary": Adversary(4, 1)},
    "risk": {"eot": EOT(VIEWS, Uniform(), views=2, chunk=64, risk=CVaR(0.5))},
    "stop": {"stop": -0.15},
    "restarts": {"restarts": 3},
    "restarts with stop": {"restarts": 3, "stop": -0.15},
    "restarts of a search": {"restarts": 2, "optimiser": Square()},
    "five looks": {"select": replace(EARLY_CHOICE, early=False), "steps": 20},
    "early": {"select": EARLY_CHOICE, "steps": 20},
    "minibatches": {"perturbation": Universal(Linf(0.1)), "restarts": 2, "eot": EOT(VIEWS, views=2, pictures=1)},
    "shared early": {"select": EARLY_CHOICE, "steps": 20, "perturbation": Universal(Linf(0.1))},
}


@pytest.fixture(scope="module")
def problem():
    net, images = small(), smooth()
    parts = {"encoder": net, "objective": Toward(), "perturbation": Linf(0.1), "optimiser": PGD(), "seed": 5}
    anchor = torch.randn(2, 12, generator=torch.Generator().manual_seed(2))
    return images, anchor, parts | {"eot": EOT(VIEWS, Uniform(), views=2, chunk=64), "steps": STEPS}


def facts(step, best):
    """The values of a step, as bytes and numbers."""
    values = [step.delta, *step.estimate, step.active, *(() if best is None else best)]
    return [v.numpy().tobytes() if isinstance(v, torch.Tensor) else v for v in values] + [step.evals, step.last]


def same_after_every_step(tmp_path, run):
    """Interrupt the run after each of its steps; `run(position)` gives (step, best) from there."""
    steps = list(run(None))
    assert len(steps) > 1
    for at, (step, _) in enumerate(steps):
        write_values(tmp_path / "position", step.state, "key")
        went_on = list(run(load_values(tmp_path / "position", "key")))
        assert [facts(*row) for row in went_on] == [facts(*row) for row in steps[at + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_attack_resumed_after_any_step_gives_the_same_result(problem, tmp_path, name):
    images, anchor, parts = problem
    setup = parts | RUNS[name]
    same_after_every_step(tmp_path, lambda at: watch(images, anchor, state=at, **setup))


@pytest.mark.slow
def test_suite_resumed_after_any_step_gives_the_same_result(problem, tmp_path):
    images, anchor, parts = problem
    attacks = [Member("pgd", Toward(), anchor, PGD()), Member("square", Toward(), anchor, Square())]
    attacks.append(Member("apgd", Away(), anchor, Auto()))
    setup = {name: part for name, part in parts.items() if name not in ("objective", "optimiser")}

    def run(at):
        for _, step, best in suite(images, Aim(Toward(), anchor), attacks, state=at, **setup):
            yield step, best

    same_after_every_step(tmp_path, run)
