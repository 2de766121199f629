"""What an encoder looks at, before and after an attack: maps for a few pictures, and numbers that say what to think
of the maps."""

from attacks.evaluation.explain.explanation import Explanations, explain

__all__ = ["Explanations", "explain"]
