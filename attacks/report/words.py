"""The names of arms, measures and parts on a page, and how numbers are written."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attacks.gate.verdict import count_text as count_text
from attacks.gate.verdict import counts_text as counts_text
from attacks.gate.verdict import level_text
from attacks.runtime.untrusted import mapping

#: The arms in the order of every table: the attack in question first. A run may lack some.
ARMS = {
    "eot": "attack with EOT",
    "bare": "attack on the bare encoder",
    "one_view": "EOT, one view a step",
    "no_eot": "attack without EOT",
    "noise": "random noise",
    "clean": "clean",
}
BANKS = {"same": "Views from the attack's own ranges", "wide": "Views from wider ranges"}
#: What the cosine of objectives that are no loss is to.
OBJECTIVES = {"away": "clean embedding", "toward": "target", "layers": "clean features"}
#: The words that need a definition: a card at each section of a page, an entry in its glossary and in the docs.
GLOSSARY = {
    "success": "The share of unseen views in which the encoder is wrong; "
    "with a target, that it takes for the target.",
    "EOT": "Expectation over transformation: each step of an attack takes the mean loss over random camera views.",
    "arm": "What is judged and compared, such as untouched pictures, random noise or an attack.",
    "bank": "A fixed set of views.",
    "held-out": "Not used by the attack, nor to choose its result.",
    "cluster": "Pictures that count as one, such as tiles of a photograph, near duplicates, frames of a clip.",
    "interval": "The range that holds the mean over all such pictures, with 95 % confidence.",
    "primary": "The comparison that was declared before the run, the only one that is tested without correction.",
    "gate": "The decision whether a run meets the requirements of a policy: PASS, FAIL or UNDECIDED.",
    "eps": "The largest change that the attack may make, measured by its norm.",
}

#: What a view is, by the task: where the attacker succeeds, without a target and with one, and where it is right.
FATES = {
    "retrieval": ("taken for something else", "taken for the attacker's target", "matched to the right picture"),
    "verification": ("no longer accepted", "accepted as the attacker's target", "accepted as the right one"),
    "classification": ("given another class", "given the attacker's class", "given the right class"),
    "score": ("across the threshold", "across the threshold", "on the right side"),
}


class Measure(NamedTuple):
    """A measure, defined once for report, terminal, comparison and docs/measures.md: its column in per_image.csv, its
    name, its `meaning` for a picture, what a view or mean is in a sentence (`plain`), the `table`'s value over
    clusters, and the number of digits (None: as many as its interval supports)."""

    key: str
    name: str
    meaning: str
    plain: str = ""
    table: str = "mean"
    digits: int | None = None


RETRIEVAL = (
    Measure(
        "success",
        "attacker's success",
        "share of views taken for something else, or not accepted; with a target, for it",
    ),
    Measure("success_survived", "lost views", "the same, of the views that the clean picture survives"),
    Measure(
        "recall_at_1", "recall@1", "share of views whose nearest is the true match", "matched to the right picture"
    ),
    Measure("recall_at_5", "recall@5", "share with it among the 5 nearest", "matched within the first five"),
    Measure("recall_at_10", "recall@10", "share with it among the 10 nearest", "matched within the first ten"),
    Measure("median_rank", "median rank of the true match", "1 is best; the lower median", "", "median", 0),
    Measure("mrr", "mean reciprocal rank", "mean of 1 / rank of the true match", "mean reciprocal rank"),
    Measure("goal_rank", "median rank of the target", "1 is the attacker's goal", "", "median", 0),
    Measure(
        "no_answer", "no answer", "share of views for which a black box has no answer: no success of the attacker"
    ),
    Measure("fooled_accepted", "fooled and accepted", "share of views with success that the detector does not flag"),
    Measure("flagged", "flagged", "share that the detector flags; of clean views false alarms", "flagged"),
    Measure("knn", "kNN accuracy", "share of views whose nearest pictures vote for it", "put into the right class"),
)
EMBEDDING = (
    Measure("cosine", "cosine to the clean embedding", "1 is the untouched picture", "likeness to the original"),
    Measure(
        "shift",
        "shift of that cosine",
        "that of the untouched picture in the same view subtracted; tested in the comparisons",
        "change of likeness",
    ),
    Measure(
        "cosine_p10", "10th percentile of the cosine", "a tenth of the views has less", "likeness in the lowest tenth"
    ),
    Measure(
        "worst_cosine",
        "cosine of the most resistant view",
        "of the view that resists the attacker most",
        "likeness in the most resistant view",
    ),
    Measure("goal_cosine", "cosine to the target", "1 is the attacker's goal", "likeness to the target"),
    Measure("distance", "distance", "to the clean embedding or, with a target, to the target's", "", "median", 3),
    Measure("score", "score", "the number that task.threshold is compared with", "", "median", 3),
)
#: With a false accept rate behind its name, a row of the table of arms for each.
TAR = Measure(
    "tar_FAR", "TAR at FAR", "share of views accepted as the picture they show", "accepted as the right one"
)
MEASURES = {measure.key: measure for measure in (*RETRIEVAL, *EMBEDDING, TAR)}


def fate(content: Mapping[str, Any], measure: str = "success") -> str:
    """What the views are whose share a `measure` is: for a success, that of the attacker."""
    threat, plain = content["threat"], MEASURES["tar_FAR" if measure.startswith("tar_") else measure].plain
    fates = FATES.get(threat.get("task"), FATES["retrieval"])
    return fates[2] if measure == "recall_at_1" else plain or fates[bool(threat["targeted"])]


def arm_names(content: Mapping[str, Any]) -> dict[str, str]:
    """The names of the arms of a run; in a run with a patch the noise is a patch too."""
    return ARMS | ({"noise": "random patch"} if content["threat"]["patch"] else {})


def measure_groups(
    arms: Mapping[str, Mapping[str, Any]], chance: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, list[Measure]]]:
    """The measures that an arm has, in groups, with their chance in the meaning; `tar FAR` is a row for each FAR."""

    def present(measures: Sequence[Measure]) -> list[Measure]:
        result = []
        for m in (m for m in measures if any(measure_value(row, m.key) for row in arms.values())):
            level = chance.get(m.key.replace(" ", "_"))
            result.append(m._replace(meaning=f"{m.meaning}; {level_text(level)}") if level else m)
        return result

    rates: Mapping[str, Any] = next((row["tar"] for row in arms.values() if row.get("tar")), {})
    verification = [TAR._replace(key=f"tar {far}", name=f"{TAR.name} {100 * float(far):g}%") for far in rates]
    groups = {"What the view is taken for": RETRIEVAL, "The embedding": EMBEDDING, "Verification": verification}
    return [(name, rows) for name, measures in groups.items() if (rows := present(measures))]


def measure_value(row: Mapping[str, Any], key: str) -> Any:
    """The interval of a key of `measure_groups`; None if the arm has none."""
    head, _, far = key.partition(" ")
    value = row.get(head)
    return value.get(far) if value and far else value


def measure_name(key: str) -> str:
    """The name of a measure: "recall@1" for `recall_at_1`."""
    return MEASURES[key].name if key in MEASURES else key


def definitions(*keys: str) -> str:
    """The names and meanings of some measures, for a legend."""
    return "; ".join(f"{MEASURES[key].name} ({MEASURES[key].meaning})" for key in keys)


def number_words(value: Mapping[str, Any], digits: int | None = None, sign: str = "") -> tuple[str, str]:
    """A mean, and its interval in brackets or range in parentheses; 2 digits, or 3 for ends less than 0.02 apart."""
    ends = value["low"], value["high"]
    if digits is None:
        digits = 3 if 0 < ends[1] - ends[0] < 0.02 else 2
    mean, low, high = (f"{number:{sign}z.{digits}f}" for number in (value["mean"], *ends))
    return mean, f"({low} to {high})" if value.get("kind") == "range" else f"[{low}, {high}]"


def interval_text(value: Mapping[str, Any], digits: int | None = None, sign: str = "") -> str:
    """The `numbers` in one string, such as "0.87 [0.81, 0.93]"."""
    return " ".join(number_words(value, digits, sign))


def p_value(value: float | None, clusters: int | None = None) -> str:
    """A p value with two significant digits; without one, the number of clusters that a test needs, or a dash."""
    if value is None:
        return "\N{EN DASH}" if clusters is None else f"too few clusters: {clusters} needed"
    return "< 0.001" if value < 0.001 else f"{value:#.2g}"


def sample_counts(content: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of pictures and clusters that the tables of metrics.json are about: those held out, or all."""
    held_out = {*map(str, mapping(content.get("split")).get("judge") or content["queries"])}
    pairs = zip(content["queries"], content["clusters"], strict=False)
    return len(held_out), len({str(cluster) for name, cluster in pairs if str(name) in held_out})


def weighting(content: Mapping[str, Any]) -> tuple[float, str]:
    """Of the clusters of `sample_counts` the number over the sum of their weights, as shares of the largest; and the
    sentence that every page about the run has. 1 and nothing where all count alike."""
    rows = zip(content["queries"], content["clusters"], content.get("weights", ()), strict=False)
    held_out = mapping(content.get("split")).get("judge") or content["queries"]
    weights = [*{cluster: weight for name, cluster, weight in rows if name in held_out}.values()]
    if not weights:
        return 1.0, ""
    sentence = "Means are weighted by `weight`; medians, differences, curves and further parts are not."
    return len(weights) * max(weights) / sum(weights), sentence


def sample_words(content: Mapping[str, Any]) -> str:
    """The same in words: "36 held-out pictures in 12 clusters"."""
    text = counts_text(*sample_counts(content))
    return text.replace(" ", " held-out ", 1) if fit_arms(content) else text


def fit_arms(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """By bank and arm the measures of the pictures that a perturbation was made from, where others are held out."""
    return mapping(mapping(content.get("split")).get("arms"))


def short(value: float) -> str:
    """A coordinate with three significant digits."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def extreme_words(values: Mapping[str, float], bank: Mapping[str, Any]) -> str:
    """The three coordinates of a view that are nearest to the ends of their ranges in a bank, without numbers."""
    ranges = zip(bank["coordinates"], bank.get("ranges", ()), strict=False)
    places = {name: (values[name] - low) / (high - low) for name, (low, high) in ranges if low < high}
    names = sorted(places, key=lambda name: -abs(places[name] - 0.5))[:3]
    return ", ".join(f"{'high' if places[name] > 0.5 else 'low'} {name.partition(' (')[0]}" for name in names)


def radius(threat: Mapping[str, Any]) -> str:
    """The radius eps of a set as text: of linf in steps of 8 bits, and as a share of the range [0,1]; of any other
    norm as it is. Where each row of the table has its own, from the least to the largest."""
    radii = [threat[key] for key in ("least_eps", "eps") if key in threat]
    return " to ".join(
        f"{eps * 255:.3g}/255 ({eps:.3g})" if threat["norm"] == "linf" else f"{eps:.5g}" for eps in radii
    )


def capital(text: str) -> str:
    """The text with a capital first letter; the rest is unchanged, for it may hold names."""
    return text[:1].upper() + text[1:]
