"""The public names, each with its home: the one table that the package, type checkers and editors read."""

from .auditing.audit import audit as audit
from .camera.blur import Defocus as Defocus, GaussianBlur as GaussianBlur, MotionBlur as MotionBlur
from .camera.codec import Jpeg as Jpeg, Webp as Webp, jpeg as jpeg, webp as webp
from .camera.downscale import Downscale as Downscale
from .camera.median_pool import MedianPool as MedianPool
from .camera.pixel_crop import PixelCrop as PixelCrop
from .camera.resize_pad import ResizePad as ResizePad
from .camera.sensor import Quantise as Quantise, SensorNoise as SensorNoise, quantise as quantise
from .choice import OneOf as OneOf, Sometimes as Sometimes
from .colour.cutout import Cutout as Cutout
from .colour.exposure import Exposure as Exposure, WhiteBalance as WhiteBalance
from .colour.illumination import Moire as Moire, Shading as Shading, Shadow as Shadow, Vignette as Vignette
from .colour.photometric import (
    Brightness as Brightness,
    ChannelGain as ChannelGain,
    Contrast as Contrast,
    Gain as Gain,
    Gamma as Gamma,
    Hue as Hue,
    Saturation as Saturation,
)
from .compat import (
    affine as affine,
    perspective as perspective,
    rotate as rotate,
    warp_affine as warp_affine,
    warp_perspective as warp_perspective,
)
from .compose import Compose as Compose, Geometry as Geometry, Homography as Homography, Stage as Stage
from .draws import (
    Antithetic as Antithetic,
    Draws as Draws,
    Fixed as Fixed,
    Grid as Grid,
    Latin as Latin,
    Sobol as Sobol,
    Uniform as Uniform,
    stream as stream,
)
from .geometry.affine import Affine as Affine, Crop as Crop, Flip as Flip, Perspective as Perspective
from .geometry.cylinder import Cylinder as Cylinder
from .geometry.distortion import Lens as Lens, RollingShutter as RollingShutter, ThinPlate as ThinPlate
from .geometry.placement import Placement as Placement
from .geometry.viewpoint import Viewpoint as Viewpoint
from .on_layers import OnLayers as OnLayers
from .resizing.resize import resize as resize
from .sampling.homography import homography as homography
from .scene import (
    Layer as Layer,
    Scene as Scene,
    Shown as Shown,
    base_of as base_of,
    scene_of as scene_of,
    taken as taken,
)
from .widen import widened as widened
