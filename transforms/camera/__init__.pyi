from .blur import Defocus as Defocus, GaussianBlur as GaussianBlur, MotionBlur as MotionBlur
from .codec import Jpeg as Jpeg, Webp as Webp, jpeg as jpeg, webp as webp
from .downscale import Downscale as Downscale
from .median_pool import MedianPool as MedianPool
from .pixel_crop import PixelCrop as PixelCrop
from .resize_pad import ResizePad as ResizePad
from .sensor import Quantise as Quantise, SensorNoise as SensorNoise, quantise as quantise
