"""The public names, each with its home: the one table that the package, type checkers and editors read."""

from .data.gallery import tiles as tiles
from .encoders.defended import Bpda as Bpda, Defended as Defended
from .encoders.features import Features as Features
from .encoders.layers import Layers as Layers, layer_shapes as layer_shapes, named_layers as named_layers
from .encoders.loading import load_encoder as load_encoder
from .encoders.randomness import randomised as randomised
from .encoders.stochastic import Stochastic as Stochastic
from .eot.adaptive import Adaptive as Adaptive
from .eot.bank import bank as bank
from .eot.estimate import Estimate as Estimate
from .eot.estimator import EOT as EOT
from .eot.risk import CVaR as CVaR, Mean as Mean, SoftMax as SoftMax, WorstOf as WorstOf
from .evaluation.drift import layer_drift as layer_drift
from .evaluation.intervals import interval as interval, rate as rate
from .evaluation.sanity import examine as examine
from .evaluation.scores import evaluate as evaluate, mean_embedding as mean_embedding
from .evaluation.transfer import leave_one_out as leave_one_out
from .experiment.verify import verify as verify
from .notebook import robustness as robustness
from .objectives.classification import DLR as DLR, CrossEntropy as CrossEntropy
from .objectives.composite import Each as Each, Sum as Sum, Term as Term
from .objectives.embedding import Away as Away, Paired as Paired, Toward as Toward
from .objectives.ensemble import Ensemble as Ensemble, Members as Members
from .objectives.penalties import (
    LPIPS as LPIPS,
    SSIM as SSIM,
    Penalties as Penalties,
    TotalVariation as TotalVariation,
)
from .objectives.retrieval import (
    InfoNCE as InfoNCE,
    Retrieval as Retrieval,
    Triplet as Triplet,
    Verification as Verification,
)
from .optimisers.apgd import APGD as APGD
from .optimisers.gradient import PGD as PGD, SGD as SGD, Adam as Adam
from .optimisers.nes import NES as NES, LabelOnly as LabelOnly
from .optimisers.square import Square as Square
from .optimisers.wiener import Wiener as Wiener
from .perturbations.ball import L2 as L2, Linf as Linf
from .perturbations.patch.patch import Patch as Patch
from .perturbations.sparse import L0 as L0, L1 as L1
from .perturbations.spectral import LowFrequency as LowFrequency, Smoothed as Smoothed
from .perturbations.subspace import Grey as Grey, Masked as Masked
from .perturbations.universal import Universal as Universal
from .solvers.loop import Step as Step
from .solvers.solver import Best as Best, attack as attack, solve as solve
from .solvers.worst import Adversary as Adversary, both_sides as both_sides, worst_views as worst_views

__version__: str
