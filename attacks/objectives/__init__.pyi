from .classification import DLR as DLR, CrossEntropy as CrossEntropy, Margin as Margin
from .composite import Each as Each, Ensemble as Ensemble, Members as Members, Sum as Sum, Term as Term
from .composite import Evasion as Evasion
from .embedding import Away as Away, Paired as Paired, Toward as Toward
from .penalties import LPIPS as LPIPS, SSIM as SSIM, Penalties as Penalties, TotalVariation as TotalVariation
from .retrieval import (
    ByText as ByText,
    InfoNCE as InfoNCE,
    Retrieval as Retrieval,
    Triplet as Triplet,
    Verification as Verification,
)
