from .loop import Step as Step
from .solver import Best as Best, attack as attack, solve as solve
from .worst import Adversary as Adversary
