"""How many pictures a study needs, from the clusters of a pilot run or from stated rates.

    viewproof plan 0.2 --pilot outputs/pilot
    viewproof plan 0.1 --baseline 0.6 --correlation 0.3 --views 512

Prints how many clusters (independent pictures) detect a difference of that size in the primary comparison with a
power of 80 %, by sign flips at 0.05.
"""

import argparse
from pathlib import Path

from torch import Tensor

from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.per_image import ARM, BANK, cluster_column, judged_rows, number_column
from attacks.evaluation.significance import clusters_for_power, clusters_from_rates
from attacks.report.pairs import untrusted_rows
from attacks.runtime.untrusted import mapping, read_untrusted

#: The power of every plan.
POWER = 0.8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("effect", type=float, metavar="EFFECT", help="the difference that is to be detected")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pilot", type=Path, metavar="RUN", help="a finished run, whose clusters are the sample")
    source.add_argument("--baseline", type=float, metavar="RATE", help="success of the attack without EOT")
    parser.add_argument("--correlation", type=float, default=0.3, help="of the views of one picture (default: 0.3)")
    parser.add_argument("--views", type=int, default=512, help="views of each picture (default: 512)")


def run(options: argparse.Namespace) -> None:
    for key in ("effect", "baseline", "correlation"):
        value = getattr(options, key)
        if value is not None and not (0 < value < 1 or (key == "correlation" and value == 0)):
            name = "EFFECT" if key == "effect" else f"--{key}"
            raise ValueError(f"`{name}` must be a number above 0 and below 1; got {value:g}")
    effect = options.effect
    if options.pilot is not None:
        differences, measure, other = pilot(options.pilot)
        clusters = clusters_for_power(differences, effect, POWER)
        source = (
            f"{len(differences)} clusters of {options.pilot}, whose differences in {measure} between {ARM} and "
            f"{other} have mean {float(differences.mean()):+.2f}, standard deviation {float(differences.std()):.2f}"
        )
    else:
        if not 1 <= options.views <= 10**6:
            raise ValueError(f"`--views` must be 1 to a million; got {options.views}")
        clusters = clusters_from_rates(options.baseline, effect, options.correlation, options.views, POWER)
        source = (
            f"{options.views} views a picture, success {options.baseline:g} without EOT and "
            f"{options.baseline + effect:g} with it, both with a correlation of {options.correlation:g} within a "
            "picture, independent of each other"
        )
    power = f"detect a difference of {effect:g} with a power of {POWER:.0%}"
    print(f"{clusters} independent pictures {power}; from {source}")


def pilot(folder: Path) -> tuple[Tensor, str, str]:
    """The differences (C,) of the clusters of a finished run in its primary comparison, positive where EOT is the
    stronger attack; the measure; and the arm that EOT was compared with. Raises ValueError or OSError where the run
    has no such comparison, or fewer than two clusters."""
    primary = mapping(read_untrusted(folder / "metrics.json").get("primary"))
    measure, other = str(primary.get("measure")), str(primary.get("against"))
    rows = [row for row in judged_rows(untrusted_rows(folder / "per_image.csv")) if row.get("bank") == BANK]
    parts = [[row for row in rows if row.get("arm") == arm] for arm in (ARM, other)]
    values, other_values = (number_column(part, measure) if part and measure in part[0] else None for part in parts)
    if values is None or other_values is None or len(values) != len(other_values) or "cluster" not in rows[0]:
        raise ValueError(f"`--pilot`: `{folder}` has no primary comparison; make the run anew with this release")
    differences = by_cluster(values - other_values, cluster_column(parts[0]))
    if len(differences) < 2:
        raise ValueError(f"`--pilot`: `{folder}` has one cluster; a pilot needs two or more")
    return differences if measure == "success" else -differences, measure, other
