"""The loop of an attack and what repeats it: restarts, searches, suites, worst views."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
