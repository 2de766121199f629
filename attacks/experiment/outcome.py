"""The result of an experiment."""

from dataclasses import dataclass

from torch import Tensor

from attacks.evaluation.drift import Drift
from attacks.evaluation.sanity.check import Sanity
from attacks.evaluation.scores import Scores
from attacks.experiment.batch import SAME, Bench, Failure
from attacks.experiment.cost import Spent
from attacks.solvers.trace import Trace


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an experiment: the scores by bank and arm, and by arm the cosine in the worst view, the norm of
    the change, the step at which each picture's perturbation was `chosen`, and the cost; the trace, and the sanity
    checks of the first batch."""

    bench: Bench
    scores: dict[str, dict[str, Scores]]
    worst: dict[str, Tensor]  # for each picture the cosine (N,) in its worst view
    budget: dict[str, Tensor]
    chosen: dict[str, Tensor]  # (N,), of optimised arms
    trace: list[Trace]
    costs: dict[str, Spent]
    cached: int  # gallery pictures whose embeddings came from the cache
    refined: int  # gradient steps from the worst views of the bank
    sanity: Sanity | None
    drift: Drift | None  # of the configured layers
    failed: tuple[Failure, ...] = ()  # pictures left out of all tables
    fell_back: tuple[str, ...] = ()  # arms that continued in float32
    left: int = 0  # pictures that were not needed to decide the policy

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of the tables."""
        return tuple(self.scores[SAME])

    @property
    def cost(self) -> Spent:
        """The cost of the whole run without sanity checks and layer drift.

        Passes before the run do not count: the engine's measurement (which may fill the cache), and the pass that
        guesses the class of each picture without a label."""
        return sum(self.costs.values(), Spent())
