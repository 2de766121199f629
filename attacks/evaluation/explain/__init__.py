"""Attribution maps of a few pictures, before and after an attack, and measures of how faithful the maps are."""

from attacks.evaluation.explain.explanation import Explanations, explain

__all__ = ["Explanations", "explain"]
