"""Images to embeddings: the families of encoders, their preprocessing, and how they are run.

The names in `__init__.pyi` are imported when they are first used: `attacks.eot` imports from this room.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
