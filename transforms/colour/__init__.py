"""Stages that change values where they are, and clamp to [0,1] at their end.

Those of `photometric` and `cutout` work on display values, as files store them. Those of `exposure` and
`illumination` work on light: sRGB is decoded, multiplied, encoded again.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
