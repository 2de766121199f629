"""The loop of each kind of optimiser."""

from collections.abc import Callable

from attacks.eot.problem import Options, Problem
from attacks.eot.protocols import Optimiser, Proposer
from attacks.optimisers.nes import NES, LabelOnly
from attacks.solvers.descent import descend
from attacks.solvers.label_only import decided
from attacks.solvers.loop import LoopState, Steps
from attacks.solvers.sampled import sampled
from attacks.solvers.search import search


def loop_of(optimiser: Optimiser | Proposer) -> Callable[[Problem, Options, LoopState | None], Steps]:
    """The loop that suits the optimiser: `descend`, `sampled`, `decided` or `search`."""
    if isinstance(optimiser, LabelOnly):
        return decided
    if isinstance(optimiser, NES):
        return sampled
    return search if optimiser.gradient_free else descend
