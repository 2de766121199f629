"""Sanity checks of an attack: short runs of it with an expected outcome.

A weak attack makes a fragile encoder look robust. All compared runs are scored on the same views, which no other part
uses (Carlini et al. 2019, "On evaluating adversarial robustness"; Tramer et al. 2020; Zimmermann et al. 2022)."""

from attacks.evaluation.sanity.battery import examine
from attacks.evaluation.sanity.check import Check, Sanity, table

__all__ = ["Check", "Sanity", "examine", "table"]
