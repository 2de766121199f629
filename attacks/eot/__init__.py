"""Expectation over transformation: views, the estimator of the expected loss, and its gradient."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
