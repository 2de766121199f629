"""When an attack must not be believed: short runs of it whose outcome is known beforehand, if all is well.

A weak attack makes a fragile encoder look robust. Each check is one question with one answer in plain words; all of
them are judged on views of their own, common to everything that is compared (Carlini et al. 2019, "On evaluating
adversarial robustness"; Tramer et al. 2020; Zimmermann et al. 2022).
"""

from attacks.evaluation.sanity.battery import examine
from attacks.evaluation.sanity.check import Check, Sanity, table

__all__ = ["Check", "Sanity", "examine", "table"]
