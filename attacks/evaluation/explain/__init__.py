"""Attribution maps of a few pictures before and after an attack, and the pixels that a gradient reaches."""

from attacks.evaluation.explain.explanation import Explanations, explain

__all__ = ["Explanations", "explain"]
