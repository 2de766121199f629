"""Scores of an attack, with intervals and tests, and the optional parts of an evaluation."""
