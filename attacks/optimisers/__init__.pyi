from .apgd import APGD as APGD
from .gradient import PGD as PGD, SGD as SGD, Adam as Adam
from .nes import NES as NES, LabelOnly as LabelOnly, NESSquare as NESSquare
from .square import Square as Square
from .wiener import Wiener as Wiener
