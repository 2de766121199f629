"""The way of an attack, step by step, as the report draws it."""

from typing import NamedTuple

from attacks.runtime.stored import stored


@stored("trace")
class Trace(NamedTuple):
    """One line of `steps.csv`. `attack` is the optimiser, or the member of a suite. `objective` is the mean loss of
    the step's views (of `toward`, the cosine itself); `held_out` that on the fixed bank that chooses the best iterate
    (one bank for all arms), as of the last comparison (of the risk, if that is not the mean), or None before the
    first; `views` of each picture, and `pictures` that took part. `evals` are the encoder passes of the steps so far,
    of all pictures; those that compare iterates are not among them."""

    batch: int
    arm: str
    attack: str
    step: int
    objective: float
    stderr: float
    snr: float
    held_out: float | None
    views: int
    pictures: int
    evals: int
