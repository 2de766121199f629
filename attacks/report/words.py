"""What things are called on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

#: In this order wherever arms stand side by side; a run need not have them all.
ARMS = {
    "clean": "clean",
    "noise": "random noise",
    "no_eot": "attack without EOT",
    "one_view": "EOT, one view a step",
    "eot": "attack with EOT",
}
#: The banks of views.
BANKS = {"same": "Views from the attack's own ranges", "wide": "Views from wider ranges"}
#: What else a run spends passes on.
PARTS = {
    "gallery": "embedding the gallery",
    "anchors": "what the attacks compare with",
    "judging": "judging all arms",
    "response": "maps and curves",
    "left_out": "attacks without each stage",
    "deployment": "file formats and resizers",
    "explanations": "explanations",
}
#: What the objective of an attack measures, if it is not a loss.
OBJECTIVES = dict.fromkeys(("away", "toward", "layers"), "mean cosine to the anchor")


class Measure(NamedTuple):
    """A row of the table of arms: the key of metrics.json, its name, what it says, and its digits."""

    key: str
    name: str
    meaning: str
    digits: int = 3


EMBEDDING = (
    Measure("cosine", "cosine to the clean embedding", "1 is the untouched picture"),
    Measure("shift", "shift of that cosine", "against the untouched picture in the same view"),
    Measure("cosine_p10", "10th percentile", "a tenth of the views has a lower cosine"),
    Measure("worst_cosine", "of the worst view", "the one that resists the attacker most"),
    Measure("goal_cosine", "cosine to the target", "1 is what the attacker wants"),
)
RETRIEVAL = (
    Measure("success", "attacker's success", "share of views"),
    Measure("recall_at_1", "recall@1", "the true match comes first"),
    Measure("recall_at_5", "recall@5", "it is among the first 5"),
    Measure("recall_at_10", "recall@10", "it is among the first 10"),
    Measure("median_rank", "median rank of the true match", "1 is best", 1),
    Measure("mrr", "mean reciprocal rank", "1 is best"),
    Measure("goal_rank", "median rank of the target", "1 is what the attacker wants", 1),
    Measure("knn", "kNN accuracy", "the nearest pictures vote"),
)
NAMES = {measure.key: measure.name for measure in (*EMBEDDING, *RETRIEVAL)}


def arm_names(content: Mapping[str, Any]) -> dict[str, str]:
    """The names of the arms in a run: of a patch, the noise is a patch too."""
    patch = content["threat"].get("patch")
    return ARMS | ({"noise": "random patch"} if patch else {})


def measured(arms: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[Measure]]]:
    """The rows of a table of arms, in groups: what at least one arm has. The rates of `tar` have a row for each FAR,
    under a key `tar FAR`."""

    def there(some: tuple[Measure, ...]) -> list[Measure]:
        return [measure for measure in some if any(row.get(measure.key) for row in arms.values())]

    rates: Mapping[str, Any] = next((row["tar"] for row in arms.values() if row.get("tar")), {})
    verified = [Measure(f"tar {far}", f"TAR at FAR {_rate(far)}", "verified as its own picture") for far in rates]
    groups = [
        ("The embedding", there(EMBEDDING)),
        ("What the view is taken for", there(RETRIEVAL)),
        ("Verification", verified),
    ]
    return [(name, rows) for name, rows in groups if rows]


def value_of(row: Mapping[str, Any], key: str) -> Any:
    """The interval under a key of `measured`; None where the arm has none."""
    head, _, far = key.partition(" ")
    value = row.get(head)
    return value.get(far) if value and far else value


def measure_name(key: str) -> str:
    """`recall_at_1` as people say it; a key that is new here as it stands."""
    return NAMES.get(key, key.replace("_", " "))


def p_value(value: float | None) -> str:
    """A p value as papers print it; a dash for none."""
    if value is None:
        return "\N{EN DASH}"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def short(value: float) -> str:
    """A coordinate: three digits say enough of where it lies."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def share(value: Mapping[str, float]) -> str:
    """An interval as a share of the views."""
    return f"in {value['mean']:.0%} of the views (95% interval {value['low']:.0%} to {value['high']:.0%})"


def _rate(far: str) -> str:
    try:
        return f"{100 * float(far):g}%"
    except ValueError:
        return far
