"""How many pictures a study needs: `python -m attacks.run plan=EFFECT pilot=RUN_DIRECTORY`, or from stated rates."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.comparisons import ARM, BANK
from attacks.evaluation.per_image import clusters_of, column_of
from attacks.evaluation.planning import clusters_for_power, clusters_from_rates
from attacks.runtime.untrusted import mapping, read, text, word

#: The keys of the command line, and the defaults of those that may be left out.
KEYS = ("plan", "pilot", "baseline", "correlation", "views")
CORRELATION, VIEWS = "0.3", "512"
#: The power of every plan.
POWER = 0.8


def plan(values: Mapping[str, str]) -> str:
    """The answer in one line: the clusters (independent pictures) that detect a difference of `plan` in the primary
    comparison with a power of 80 %, by sign flips at 0.05.

    Args:
        values: `plan`, above 0 and below 1; and `pilot`, the directory of a finished run whose clusters stand for
            those of the study; or `baseline`, the success of the attack that EOT is compared with, with `correlation`
            of the views of one picture and the number of `views`.

    Raises:
        ValueError: in one line: an unknown key, a value out of its range, no pilot and no baseline or both, or a
            directory that is no finished run.
    """
    unknown = [key for key in values if key not in KEYS]
    if unknown:
        raise ValueError(f"`{word(unknown[0])}` is no key of a plan: known are {', '.join(KEYS)}")
    if ("pilot" in values) == ("baseline" in values):
        raise ValueError("`plan` needs pilot=RUN_DIRECTORY or baseline=RATE, one of the two")
    effect = _share(values, "plan")
    if "pilot" in values:
        differences, measure, other = pilot(Path(values["pilot"]))
        clusters = clusters_for_power(differences, effect, POWER)
        source = (
            f"{len(differences)} clusters of {values['pilot']}, whose differences in {measure} between {ARM} and "
            f"{other} have mean {float(differences.mean()):+.2f}, standard deviation {float(differences.std()):.2f}"
        )
    else:
        baseline, correlation = _share(values, "baseline"), _share(values, "correlation", CORRELATION)
        views = values.get("views", VIEWS)
        if not views.isdecimal() or not 1 <= int(views) <= 10**6:
            raise ValueError(f"`views` must be a whole number of at least 1; got {word(views)}")
        clusters = clusters_from_rates(baseline, effect, correlation, int(views), POWER)
        source = (
            f"{views} views a picture, success {baseline:g} without EOT and {baseline + effect:g} with it, both with "
            f"a correlation of {correlation:g} within a picture, independent of each other"
        )
    found = f"{clusters} independent pictures detect a difference of {effect:g} with a power of {POWER:.0%}"
    return f"{found}; from {source}"


def pilot(folder: Path) -> tuple[Tensor, str, str]:
    """The differences (C,) of the clusters of a finished run in its primary comparison, the measure, and the arm that
    EOT was compared with. Raises ValueError or OSError."""
    primary = mapping(read(folder / "metrics.json").get("primary"))
    measure, other = str(primary.get("measure")), str(primary.get("against"))
    rows = [row for row in csv.DictReader(io.StringIO(text(folder / "per_image.csv"))) if row.get("bank") == BANK]
    by_arm = {arm: [row for row in rows if row.get("arm") == arm] for arm in (ARM, other)}
    columns = {arm: column_of(some, measure) if some and measure in some[0] else None for arm, some in by_arm.items()}
    own, theirs = columns[ARM], columns[other]
    if own is None or theirs is None or len(own) != len(theirs) or "cluster" not in rows[0]:
        raise ValueError(f"`pilot`: `{folder}` has no primary comparison; make the run anew with this release")
    differences = by_cluster(own - theirs, clusters_of(by_arm[ARM]))
    if len(differences) < 2:
        raise ValueError(f"`pilot`: `{folder}` has one cluster; a pilot needs two or more")
    return differences if measure == "success" else -differences, measure, other


def _share(values: Mapping[str, str], key: str, default: str = "") -> float:
    given = values.get(key, default)
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1 and not (key == "correlation" and value == 0):
        raise ValueError(f"`{key}` must be a number above 0 and below 1; got {word(given) or 'nothing'}")
    return value
