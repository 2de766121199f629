"""The public names, each with its home: the one table that the package, type checkers and editors read."""

from .auditing.audit import audit as audit
from .camera.codec import jpeg as jpeg, Jpeg as Jpeg
from .camera.sizes import Downscale as Downscale
from .colour.photometric import Brightness as Brightness, Contrast as Contrast
from .compat import warp_affine as warp_affine, warp_perspective as warp_perspective, perspective as perspective
from .compose import Compose as Compose, Stage as Stage
from .draws.samplers import Sobol as Sobol
from .geometry.affine import Affine as Affine, Perspective as Perspective
from .geometry.viewpoint import Viewpoint as Viewpoint
from .resizing.resize import resize as resize
from .sampling.homography import homography as homography
