"""Points of the unit cube, and the ranges of physical values that they stand for."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
