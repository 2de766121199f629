"""Views of images: differentiable, antialiased, resampled once.

Legend. N images or views, C channels, H, W. Images are floating NCHW in [0,1]. Pixel frame: integer = pixel centre
(OpenCV's). Stage frame: origin at the image centre, unit = half the shorter side, x right, y down, positive angles
clockwise as displayed. A view is a point `u` (N,dims) of the unit cube; its physical values have units
(`pipeline.describe(u)`).

The public names stand in `__init__.pyi`, the rest in those of the rooms; each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
