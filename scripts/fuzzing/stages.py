"""The target `stages`: cases and laws of the transform layer."""

from __future__ import annotations

from fuzzing.stage_cases import CASES
from fuzzing.stage_laws import check
from fuzzing.target import Target

TARGET = Target("stages", CASES, check)
