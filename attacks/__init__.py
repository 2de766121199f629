"""Attacks on image encoders under expectation over transformation.

The names below are imported when they are first used, so that the command line answers before torch is loaded. No
module may share its name with one of them: importing it would hide the function.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attacks.adaptive import Adaptive
    from attacks.encoders import load_encoder
    from attacks.eot import EOT
    from attacks.estimate import Estimate
    from attacks.evaluation import bank, evaluate
    from attacks.loop import Step, attack
    from attacks.metrics import interval
    from attacks.objectives import Away, Toward
    from attacks.optimisers import PGD, SGD
    from attacks.perturbations import L2, Linf, Universal
    from attacks.risk import CVaR, Mean, SoftMax, WorstOf
    from attacks.solver import Best, solve

_HOME = {
    "attack": "loop",
    "Step": "loop",
    "load_encoder": "encoders",
    "EOT": "eot",
    "Estimate": "estimate",
    "Adaptive": "adaptive",
    "bank": "evaluation",
    "evaluate": "evaluation",
    "interval": "metrics",
    "Away": "objectives",
    "Toward": "objectives",
    "PGD": "optimisers",
    "SGD": "optimisers",
    "L2": "perturbations",
    "Linf": "perturbations",
    "Universal": "perturbations",
    "CVaR": "risk",
    "Mean": "risk",
    "SoftMax": "risk",
    "WorstOf": "risk",
    "Best": "solver",
    "solve": "solver",
}
__all__ = [
    "EOT",
    "L2",
    "PGD",
    "SGD",
    "Adaptive",
    "Away",
    "Best",
    "CVaR",
    "Estimate",
    "Linf",
    "Mean",
    "SoftMax",
    "Step",
    "Toward",
    "Universal",
    "WorstOf",
    "attack",
    "bank",
    "evaluate",
    "interval",
    "load_encoder",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attacks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attacks.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def _check_neighbours() -> None:
    """`transforms` and `configs` are common names: a folder of that name elsewhere on the path would shadow ours."""
    root = Path(__file__).resolve().parents[1]
    for name in ("transforms", "configs"):
        found = importlib.util.find_spec(name)
        origin = Path(found.origin).resolve() if found and found.origin else None
        if origin is None or origin.parents[1] != root:
            raise ImportError(
                f"`{name}` was found at {origin}, not beside `attacks` in {root}: another folder shadows it"
            )


_check_neighbours()
