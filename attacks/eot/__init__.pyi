from .adaptive import Adaptive as Adaptive
from .estimate import Estimate as Estimate
from .estimator import EOT as EOT
from .problem import Problem as Problem, Options as Options
from .protocols import Objective as Objective, Optimiser as Optimiser
from .risk import CVaR as CVaR, Mean as Mean
