from .choice import OneOf as OneOf, Sometimes as Sometimes
from .on_layers import OnLayers as OnLayers
from .widen import widened as widened
