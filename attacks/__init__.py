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
    from attacks.encoders.features import Features
    from attacks.encoders.layers import Layers, layer_shapes, named_layers
    from attacks.encoders.loading import Bpda, Defended, Stochastic, load_encoder
    from attacks.encoders.randomness import randomised
    from attacks.eot.adaptive import Adaptive
    from attacks.eot.bank import bank
    from attacks.eot.estimate import Estimate
    from attacks.eot.estimator import EOT
    from attacks.eot.risk import CVaR, Mean, SoftMax, WorstOf
    from attacks.evaluation.drift import layer_drift
    from attacks.evaluation.intervals import interval, rate
    from attacks.evaluation.sanity import examine
    from attacks.evaluation.scores import evaluate, mean_embedding
    from attacks.evaluation.transfer import leave_one_out
    from attacks.notebook import robustness
    from attacks.objectives.classification import DLR, CrossEntropy
    from attacks.objectives.composite import Each, Sum, Term
    from attacks.objectives.embedding import Away, Paired, Toward
    from attacks.objectives.ensemble import Ensemble, Members
    from attacks.objectives.penalties import LPIPS, SSIM, Penalties, TotalVariation
    from attacks.objectives.retrieval import InfoNCE, Retrieval, Triplet, Verification
    from attacks.optimisers.apgd import APGD
    from attacks.optimisers.gradient import PGD, SGD, Adam
    from attacks.optimisers.square import Square
    from attacks.optimisers.wiener import Wiener
    from attacks.perturbations.patch.patch import Patch
    from attacks.perturbations.spectral import LowFrequency, Smoothed
    from attacks.perturbations.subspace import Grey, Masked
    from attacks.perturbations.universal import L0, L1, L2, Linf, Universal
    from attacks.solvers.loop import Step, attack
    from attacks.solvers.solver import Best, solve
    from attacks.solvers.worst import Adversary, both_sides, worst_views

_HOME = {
    "attack": "loop",
    "Step": "loop",
    "load_encoder": "encoders",
    "Bpda": "encoders",
    "Defended": "encoders",
    "Stochastic": "encoders",
    "randomised": "randomness",
    "EOT": "eot",
    "Estimate": "estimate",
    "Adaptive": "adaptive",
    "bank": "evaluation",
    "evaluate": "evaluation",
    "interval": "metrics",
    "rate": "metrics",
    "robustness": "notebook",
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
    "APGD": "apgd",
    "Wiener": "wiener",
    "Adam": "optimisers",
    "L0": "perturbations",
    "L1": "perturbations",
    "Patch": "patch",
    "Masked": "regions",
    "Grey": "regions",
    "LowFrequency": "spectral",
    "Smoothed": "spectral",
    "Square": "square",
    "Paired": "objectives",
    "Retrieval": "retrieval",
    "InfoNCE": "retrieval",
    "Triplet": "retrieval",
    "Verification": "retrieval",
    "CrossEntropy": "classification",
    "DLR": "classification",
    "Sum": "combined",
    "Term": "combined",
    "Each": "combined",
    "Layers": "layers",
    "named_layers": "layers",
    "Features": "features",
    "layer_shapes": "inspection",
    "layer_drift": "drift",
    "Ensemble": "ensemble",
    "Members": "ensemble",
    "leave_one_out": "transfer",
    "mean_embedding": "anchors",
    "TotalVariation": "penalties",
    "SSIM": "penalties",
    "LPIPS": "penalties",
    "Penalties": "penalties",
    "examine": "sanity",
    "worst_views": "worst",
    "Adversary": "worst",
    "both_sides": "worst",
}
__all__ = [
    "APGD",
    "DLR",
    "EOT",
    "L0",
    "L1",
    "L2",
    "LPIPS",
    "PGD",
    "SGD",
    "SSIM",
    "Adam",
    "Adaptive",
    "Adversary",
    "Away",
    "Best",
    "Bpda",
    "CVaR",
    "CrossEntropy",
    "Defended",
    "Each",
    "Ensemble",
    "Estimate",
    "Features",
    "Grey",
    "InfoNCE",
    "Layers",
    "Linf",
    "LowFrequency",
    "Masked",
    "Mean",
    "Members",
    "Paired",
    "Patch",
    "Penalties",
    "Retrieval",
    "Smoothed",
    "SoftMax",
    "Square",
    "Step",
    "Stochastic",
    "Sum",
    "Term",
    "TotalVariation",
    "Toward",
    "Triplet",
    "Universal",
    "Verification",
    "Wiener",
    "WorstOf",
    "attack",
    "bank",
    "both_sides",
    "evaluate",
    "examine",
    "interval",
    "layer_drift",
    "layer_shapes",
    "leave_one_out",
    "load_encoder",
    "mean_embedding",
    "named_layers",
    "randomised",
    "rate",
    "robustness",
    "solve",
    "worst_views",
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
