"""Following a run: one protocol, a file of JSON lines always, and adapters to TensorBoard, MLflow and W&B."""

from attacks.runtime.tracking.protocol import Tracker
from attacks.runtime.tracking.record import log_end, log_step
from attacks.runtime.tracking.trackers import Trackers, refuse_unasked, tracker

__all__ = ["Tracker", "Trackers", "log_end", "log_step", "refuse_unasked", "tracker"]
