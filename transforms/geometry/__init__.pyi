from .affine import Affine as Affine, Crop as Crop, Flip as Flip, Perspective as Perspective
from .cylinder import Cylinder as Cylinder
from .distortion import Lens as Lens, RollingShutter as RollingShutter, ThinPlate as ThinPlate
from .placement import Placement as Placement
from .viewpoint import Viewpoint as Viewpoint
