"""Following a run: one protocol, a file of JSON lines always, and adapters to TensorBoard, MLflow and W&B."""

from attacks.tracking.choose import Trackers, refuse_unasked, tracker
from attacks.tracking.protocol import Tracker
from attacks.tracking.record import log_end, log_step

__all__ = ["Tracker", "Trackers", "log_end", "log_step", "refuse_unasked", "tracker"]
