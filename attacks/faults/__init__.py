"""Views, losses and gradients that are not finite, or zero: which view began it, and how to see that view again."""

from __future__ import annotations

from attacks.faults.fault import NAME, Fault, NotFinite, read, write

__all__ = ["NAME", "Fault", "NotFinite", "read", "write"]
