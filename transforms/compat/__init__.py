"""The functional layer: the arguments and the meaning of OpenCV and torchvision, with gradients to every tensor."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
