"""The loop of each kind of optimiser."""

from collections.abc import Callable

from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser, Proposer
from attacks.optimisers.nes import NES, LabelOnly, NESSquare
from attacks.solvers.descent import descend
from attacks.solvers.label_only import label_walk
from attacks.solvers.loop import LoopState, Steps
from attacks.solvers.sampled import sampled_descent
from attacks.solvers.search import nes_then_square, random_search


def loop_of(optimiser: Optimiser | Proposer) -> Callable[[Problem, Options, LoopState | None], Steps]:
    """The loop that suits the optimiser."""
    for kind, loop in ((NESSquare, nes_then_square), (LabelOnly, label_walk), (NES, sampled_descent)):
        if isinstance(optimiser, kind):
            return loop
    return random_search if optimiser.gradient_free else descend
