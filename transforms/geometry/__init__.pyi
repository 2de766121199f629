from .affine import Affine as Affine, Crop as Crop, Flip as Flip, Perspective as Perspective, Placement as Placement
from .distortion import Cylinder as Cylinder, DenseGrid as DenseGrid, Lens as Lens
from .distortion import RollingShutter as RollingShutter, ThinPlate as ThinPlate
from .viewpoint import Viewpoint as Viewpoint
