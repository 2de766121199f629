from .drift import layer_drift as layer_drift
from .sanity import examine as examine
from .scores import evaluate as evaluate, mean_embedding as mean_embedding
