from .cutout import Cutout as Cutout
from .exposure import Exposure as Exposure, WhiteBalance as WhiteBalance
from .illumination import Moire as Moire, Shading as Shading, Shadow as Shadow, Vignette as Vignette
from .photometric import (
    Brightness as Brightness,
    ChannelGain as ChannelGain,
    Contrast as Contrast,
    Gain as Gain,
    Gamma as Gamma,
    Hue as Hue,
    Saturation as Saturation,
)
