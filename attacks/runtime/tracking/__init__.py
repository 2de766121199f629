"""Experiment tracking: events.jsonl in every run directory, and adapters to TensorBoard, MLflow and W&B."""

from attacks.runtime.tracking.trackers import Trackers, log_end, log_step, refuse_unasked, tracker

__all__ = ["Trackers", "log_end", "log_step", "refuse_unasked", "tracker"]
