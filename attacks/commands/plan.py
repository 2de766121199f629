"""How many pictures a study needs, in pictures and in minutes: to compare the attack with EOT with the one without,
or to decide on which side of a bar an encoder lies. With --photos: which photographs to take of a run's patch.

    viewproof plan 0.2 --pilot outputs/pilot
    viewproof plan 0.1 --baseline 0.6 --correlation 0.3 --views 512
    viewproof plan --bar 0.5 --baseline 0.3
    viewproof plan --photos outputs/my_patch

With EFFECT: how many clusters (independent pictures) detect a difference of that size in the primary comparison with
a power of 80 %, by sign flips at 0.05. With --bar: how many put the attacker's success on one side of the bar, by the
interval of the gate, and by the sequence of `gate --run`. The minutes are those of the pilot run, for each
picture.
"""

import argparse
from pathlib import Path

from torch import Tensor

from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.per_image import ARM, BANK, cluster_column, judged_rows, number_column
from attacks.inference.bounded import Floats
from attacks.inference.plan import POWER, clusters_for_bar, clusters_for_difference, pilot_samples, rate_samples
from attacks.physical.photo_plan import photo_plan
from attacks.report.pairs import untrusted_rows
from attacks.runtime.untrusted import mapping, number, read_untrusted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "effect", type=float, nargs="?", metavar="EFFECT", help="the difference that is to be detected"
    )
    parser.add_argument("--bar", type=float, metavar="SHARE", help="instead: the bar of the attacker's success")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pilot", type=Path, metavar="RUN", help="a finished run, whose clusters are the sample")
    text = "success of the attack without EOT; with --bar, of the attack"
    source.add_argument("--photos", type=Path, metavar="RUN", help="instead: a run of a patch, to be photographed")
    source.add_argument("--baseline", type=float, metavar="RATE", help=text)
    parser.add_argument("--correlation", type=float, default=0.3, help="of the views of one picture (default: 0.3)")
    parser.add_argument("--views", type=int, default=512, help="views of each picture (default: 512)")


def run(options: argparse.Namespace) -> None:
    if options.photos is not None and options.effect is options.bar is None:
        print(photo_plan(options.photos))
        return
    if options.photos is not None or (options.effect is None) == (options.bar is None):
        raise ValueError("`plan` needs EFFECT, the difference to detect, or --bar, or --photos, one of the three")
    for key in ("effect", "bar", "baseline", "correlation"):
        value = getattr(options, key)
        if value is not None and not (0 < value < 1 or (key == "correlation" and value == 0)):
            name = "EFFECT" if key == "effect" else f"--{key}"
            raise ValueError(f"`{name}` must be a number above 0 and below 1; got {value:g}")
    if not 1 <= options.views <= 10**6:
        raise ValueError(f"`--views` must be 1 to a million; got {options.views}")
    samples, source = (_from_rates if options.pilot is None else _from_pilot)(options)
    if options.bar is None:
        clusters, goal = clusters_for_difference(samples), f"detect a difference of {options.effect:g}"
    else:
        clusters, in_sequence = (clusters_for_bar(samples, options.bar, sequential) for sequential in (False, True))
        goal = f"({in_sequence} by `gate --run`) decide about a bar of {options.bar:g}"
    time = "" if options.pilot is None else _minutes(options.pilot, clusters)
    print(f"{clusters} independent pictures {goal} with a power of {POWER:.0%}{time}; from {source}")


def _from_rates(options: argparse.Namespace) -> tuple[Floats, str]:
    shape = options.correlation, options.views
    text = f"{options.views} views a picture with a correlation of {options.correlation:g}, success "
    samples = rate_samples(options.baseline, *shape)
    if options.bar is not None:
        return samples, f"{text}{options.baseline:g}"
    total = options.baseline + options.effect
    if not total <= 1:
        raise ValueError(f"`--baseline` and EFFECT must be at most 1 in all; got {total:g}")
    text += f"{options.baseline:g} without EOT and {total:g} with it, independent"
    return rate_samples(total, *shape, seed=1) - samples, text


def _from_pilot(options: argparse.Namespace) -> tuple[Floats, str]:
    text = f"clusters of {options.pilot}, whose"
    if options.bar is not None:
        values = _arm(options.pilot, ARM, "success")
        text = f"{len(values)} {text} success has an unweighted mean of {float(values.mean()):.2f}"
        return pilot_samples(values), text
    differences, measure, other = pilot(options.pilot)
    text = f"{len(differences)} {text} differences in {measure} between {ARM} and {other} have mean "
    text += f"{float(differences.mean()):+.2f}, standard deviation {float(differences.std()):.2f}"
    return pilot_samples(differences, options.effect), text


def _minutes(folder: Path, clusters: int) -> str:
    content = read_untrusted(folder / "metrics.json")
    seconds, queries = number(mapping(content.get("cost")).get("seconds")), content.get("queries")
    if seconds is None or not isinstance(queries, list) or not queries:
        return ""
    return f", about {clusters * seconds / len(queries) / 60:.1f} minutes"


def pilot(folder: Path) -> tuple[Tensor, str, str]:
    """The differences (C,) of the clusters of a finished run in its primary comparison, positive where EOT is the
    stronger attack; the measure; and the arm that EOT was compared with. Raises ValueError or OSError where the run
    has no such comparison, or fewer than two clusters."""
    primary = mapping(read_untrusted(folder / "metrics.json").get("primary"))
    measure, other = str(primary.get("measure")), str(primary.get("against"))
    values, other_values = (_arm(folder, arm, measure) for arm in (ARM, other))
    if values.shape != other_values.shape:
        raise ValueError(f"`--pilot`: `{folder}` has other clusters in {ARM} than in {other}; make the run anew")
    differences = values - other_values
    return differences if measure == "success" else -differences, measure, other


def _arm(folder: Path, arm: str, measure: str) -> Tensor:
    """The values (C,) of an arm's clusters in a measure."""
    rows = [row for row in judged_rows(untrusted_rows(folder / "per_image.csv")) if row.get("bank") == BANK]
    rows = [row for row in rows if row.get("arm") == arm]
    values = number_column(rows, measure) if rows and measure in rows[0] else None
    if values is None or "cluster" not in rows[0]:
        raise ValueError(f"`--pilot`: `{folder}` has no {measure} of {arm}; make the run anew with this release")
    units = by_cluster(values, cluster_column(rows))
    if len(units) < 2:
        raise ValueError(f"`--pilot`: `{folder}` has one cluster; a pilot needs two or more")
    return units
