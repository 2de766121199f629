from .patch.patch import Patch as Patch
from .spectral import LowFrequency as LowFrequency, Smoothed as Smoothed
from .subspace import Grey as Grey, Masked as Masked
from .universal import L0 as L0, L1 as L1, L2 as L2, Linf as Linf, Universal as Universal
