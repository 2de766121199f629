from .blur import Defocus as Defocus, GaussianBlur as GaussianBlur, MotionBlur as MotionBlur
from .codec import Jpeg as Jpeg, Webp as Webp, jpeg as jpeg, webp as webp
from .sensor import Quantise as Quantise, SensorNoise as SensorNoise, quantise as quantise
from .sizes import Downscale as Downscale, MedianPool as MedianPool, PixelCrop as PixelCrop, ResizePad as ResizePad
