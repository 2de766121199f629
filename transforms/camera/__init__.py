"""Stages of the camera, of files and of sizes. Blurs average values as they stand, repeat the edge, and are the
identity at 0; their lengths are in pixels of the images that the stage receives."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
