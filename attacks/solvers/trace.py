"""The way of an attack, step by step, as the report draws it."""

from typing import NamedTuple

from attacks.runtime.values import stored


@stored("trace")
class Trace(NamedTuple):
    """One line of `steps.csv`. `attack` is the optimiser, or the member of a suite. `objective` is the mean loss of
    the step's views (of `toward`, the cosine itself); `held_out` that (or the risk, if it is not the mean) at the
    last look, or None before the first; mean `views` of a picture, and `pictures` that took part. `evals` are the
    encoder passes of the steps so far, of all pictures, without those that compare iterates."""

    batch: int
    arm: str
    attack: str
    step: int
    objective: float
    stderr: float
    snr: float
    held_out: float | None
    views: float
    pictures: int
    evals: int
