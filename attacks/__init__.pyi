"""The public names, each with its home: the one table that the package, type checkers and editors read."""

from .data.gallery import tiles as tiles
from .encoders.loading import load_encoder as load_encoder
from .eot.bank import bank as bank
from .eot.estimator import EOT as EOT
from .eot.problem import Problem as Problem, Options as Options
from .eot.protocols import Optimiser as Optimiser, Objective as Objective
from .eot.risk import CVaR as CVaR
from .inference.bounded import interval as interval
from .evaluation.scores import evaluate as evaluate
from .verification.verify import verify as verify
from .notebook import robustness as robustness
from .objectives.classification import CrossEntropy as CrossEntropy
from .objectives.embedding import Away as Away, Toward as Toward
from .objectives.composite import Ensemble as Ensemble
from .objectives.retrieval import Retrieval as Retrieval
from .optimisers.apgd import APGD as APGD
from .optimisers.gradient import PGD as PGD, SGD as SGD, Adam as Adam
from .optimisers.nes import NES as NES
from .optimisers.wiener import Wiener as Wiener
from .perturbations.ball import Linf as Linf, L2 as L2
from .perturbations.patch.patch import Patch as Patch
from .perturbations.sparse import L0 as L0
from .perturbations.universal import Universal as Universal
from .solvers.solver import attack as attack, solve as solve
from .solvers.worst import worst_views as worst_views

__version__: str
