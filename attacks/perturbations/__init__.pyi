from .ball import L2 as L2, Linf as Linf
from .patch.patch import Patch as Patch
from .radii import RadiusByRow as RadiusByRow
from .sparse import L0 as L0, L1 as L1
from .subspace import Grey as Grey, LowFrequency as LowFrequency, Masked as Masked, Smoothed as Smoothed
from .universal import Universal as Universal
