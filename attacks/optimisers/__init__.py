"""How a perturbation moves: PGD, SGD, Adam, APGD, Wiener, and Square, which needs no gradient."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
