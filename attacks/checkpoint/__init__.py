"""What a run has so far, as files, so that it can go on after a stop."""

from __future__ import annotations

from attacks.runtime.checkpoint import NOWHERE, Checkpoint, Going

__all__ = ["NOWHERE", "Checkpoint", "Going"]
