"""Stages that hold other stages: one that is chosen, some on a layer alone; and every range made wider."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
