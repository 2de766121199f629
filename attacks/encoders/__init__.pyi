from .counterattack import Counterattack as Counterattack
from .defended import Bpda as Bpda, Defended as Defended
from .image_encoder import ImageEncoder as ImageEncoder, with_preprocess as with_preprocess
from .loading import FAMILIES as FAMILIES, POCKET_WEIGHTS as POCKET_WEIGHTS, load_encoder as load_encoder
from .panel import Panel as Panel
from .phash import Phash as Phash, bits as bits
from .pocket import Pocket as Pocket, untrained as untrained
from .preprocess import Preprocess as Preprocess
from .score import ScoreEncoder as ScoreEncoder
from .stochastic import Stochastic as Stochastic
from .features import Features as Features
from .layers import Layers as Layers, layer_shapes as layer_shapes, named_layers as named_layers
from .randomness import randomised as randomised
