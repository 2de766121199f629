"""How many clusters the comparisons of a run need, by the test of the version before and by the present one."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.stats

from attacks.evaluation.intervals import Floats
from attacks.evaluation.planning import power_of

from .table import Row, Table

#: The share of studies that must be significant, and the significance level.
POWER, LEVEL = 0.8, 0.05
#: Comparisons of a run that shared Holm's correction.
FAMILY = 6
MOST, SEED = 200, 0


def run(directory: str, repeats: int = 2000) -> list[Table]:
    """Clusters needed for 80 % power to detect the differences of success of a finished run, on its bank "same", by
    McNemar's test of majority votes (before) and by sign flips of the clusters' shares (now).

    Studies are drawn from the run's clusters with replacement. "of six" is the smallest of six p values under Holm's
    correction, the others being larger.
    """
    shares = clusters(Path(directory) / "per_image.csv")
    if "eot" not in shares:
        raise SystemExit(f"`directory`: {directory} has no rows of the arm `eot`; name a run of config=evaluate")
    tests: dict[str, tuple[Callable[[Floats, Floats, float], float], float]] = {
        "McNemar": (mcnemar_power, LEVEL),
        "McNemar of six": (mcnemar_power, LEVEL / FAMILY),
        "sign flips": (flips_power, LEVEL),
        "sign flips of six": (flips_power, LEVEL / FAMILY),
    }
    rows: dict[str, Row] = {}
    for arm, other in shares.items():
        if arm == "eot":
            continue
        one = shares["eot"]
        drawn = np.random.default_rng(SEED).integers(len(one), size=(repeats, MOST))
        found = [fewest(test, one[drawn], other[drawn], level) for test, level in tests.values()]
        rows[f"eot - {arm}"] = (float((one - other).mean()), *found)
    count = len(shares["eot"])
    columns = {"effect": "+.3f"} | dict.fromkeys(tests, ".0f")
    title = f"Clusters for {POWER:.0%} power, from the {count} clusters of {Path(directory).name}"
    return [Table(title, columns, rows, notes=(f"-: more than {MOST}; {repeats} studies each",))]


def clusters(path: Path) -> dict[str, Floats]:
    """By arm the clusters' shares of success on the bank "same", in one order."""
    arms: dict[str, dict[str, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["bank"] == "same":
                cluster = row.get("cluster") or row["picture"]
                arms.setdefault(row["arm"], {}).setdefault(cluster, []).append(float(row["success"]))
    return {arm: np.array([np.mean(each) for each in found.values()]) for arm, found in arms.items()}


def fewest(test: Callable[[Floats, Floats, float], float], one: Floats, other: Floats, level: float) -> float | None:
    """The fewest clusters with which, and with one more, the power is enough: power is not monotonic in few."""
    enough = [False] * 2
    for n in range(5, MOST + 1):
        enough = [enough[1], test(one[:, :n], other[:, :n], level) >= POWER]
        if all(enough):
            return n - 1
    return None


def flips_power(one: Floats, other: Floats, level: float) -> float:
    return power_of(one - other, level)


def mcnemar_power(one: Floats, other: Floats, level: float) -> float:
    """The power of the exact test of the clusters that only one arm wins in more than half of their views (McNemar
    1947)."""
    first, second = one > 0.5, other > 0.5
    only, back = (first & ~second).sum(1), (second & ~first).sum(1)
    p = np.minimum(1, 2 * scipy.stats.binom.cdf(np.minimum(only, back), only + back, 0.5))
    return float((p < level).mean())
