"""Views, losses and gradients that are not finite, or zero: which view began it, at which stage."""

from attacks.eot.faults.fault import NAME, Fault, NotFinite, read_fault, write

__all__ = ["NAME", "Fault", "NotFinite", "read_fault", "write"]
