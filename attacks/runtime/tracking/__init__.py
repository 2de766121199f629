"""Experiment tracking: events.jsonl in every run directory, and adapters to TensorBoard, MLflow and W&B."""

from attacks.runtime.tracking.events import journal
from attacks.runtime.tracking.trackers import Trackers, log_end, log_step, started, tracker_state

__all__ = ["Trackers", "journal", "log_end", "log_step", "started", "tracker_state"]
