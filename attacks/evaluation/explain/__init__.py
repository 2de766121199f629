"""Attribution maps of a few pictures before and after an attack, and measures of their faithfulness."""

from attacks.evaluation.explain.explanation import Explanations, explain

__all__ = ["Explanations", "explain"]
