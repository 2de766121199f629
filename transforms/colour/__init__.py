"""Stages that change values where they are, and clamp to [0,1] at their end: `photometric` display values, as files
store them; `illumination` linear light, behind the decoded sRGB."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
