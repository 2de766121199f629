from .illumination import (
    Exposure as Exposure,
    Moire as Moire,
    Reflection as Reflection,
    Shading as Shading,
    Shadow as Shadow,
    Vignette as Vignette,
    WhiteBalance as WhiteBalance,
)
from .photometric import (
    Brightness as Brightness,
    ChannelGain as ChannelGain,
    Contrast as Contrast,
    Cutout as Cutout,
    Gain as Gain,
    Gamma as Gamma,
    Hue as Hue,
    Saturation as Saturation,
)
