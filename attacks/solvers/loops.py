"""The loop of each kind of optimiser."""

from collections.abc import Callable

from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser, Proposer
from attacks.optimisers.nes import NES, LabelOnly
from attacks.solvers.descent import descend
from attacks.solvers.label_only import label_walk
from attacks.solvers.loop import LoopState, Steps
from attacks.solvers.sampled import sampled_descent
from attacks.solvers.search import random_search


def loop_of(optimiser: Optimiser | Proposer) -> Callable[[Problem, Options, LoopState | None], Steps]:
    """The loop that suits the optimiser: `descend`, `sampled_descent`, `label_walk` or `random_search`."""
    if isinstance(optimiser, LabelOnly):
        return label_walk
    if isinstance(optimiser, NES):
        return sampled_descent
    return random_search if optimiser.gradient_free else descend
