"""A table of several runs as a page and a CSV file. Their files may come from others, so every value is checked."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from attacks.evaluation.intervals import Interval
from attacks.report.environment import TEMPLATES, environment
from attacks.report.warnings import warnings
from attacks.report.words import ARMS, judged, measure_name
from attacks.runtime.files import write_text
from attacks.runtime.tables import write_rows
from attacks.runtime.untrusted import count, mapping, number, read, word

MEASURES = ("success", "cosine")
#: How the head of the page has the name of this tool.
MARK = b"<title>Viewproof"
#: The facts that tell encoders apart.
SUBJECT = ("name", "model", "weights", "sha256", "fingerprint", "defence", "before", "features", "pool", "stochastic")


@dataclass(frozen=True)
class Row:
    """One run: the threat, and the results by arm and measure. None is a value that the run lacks."""

    directory: Path
    preset: str
    encoder: str
    threat: str
    transforms: str
    seed: int | None
    pictures: int
    clusters: int | None
    arms: Mapping[str, Mapping[str, Interval]]
    wide: Mapping[str, Mapping[str, Interval]]  # on the wide bank; empty without one
    worst: Interval | None  # the cosine of the worst views of the attack with EOT
    passes: int | None
    seconds: float | None
    warnings: int | None
    widened: float | None = None  # how many times as wide the ranges of the wide bank are
    subject: str = ""  # the digest of the encoder, with its defence

    def flat(self, name: str) -> dict[str, object]:
        """A row of the CSV file, of the run with this `name`; all runs have the same keys."""
        head = {
            key: getattr(self, key)
            for key in ("preset", "encoder", "threat", "transforms", "seed", "pictures", "clusters")
        }
        row: dict[str, object] = {"run": name, **head}
        for bank, arms in (("", self.arms), ("wide_", self.wide)):
            for arm in ARMS:
                for measure in MEASURES:
                    row |= _columns(f"{bank}{arm}_{measure}", arms.get(arm, {}).get(measure))
        row |= _columns("eot_worst_cosine", self.worst)
        return row | {key: getattr(self, key) for key in ("passes", "seconds", "warnings")}


class Skipped(NamedTuple):
    """A directory without a readable run, and the reason."""

    directory: Path
    reason: str


class Collected(NamedTuple):
    """The runs in the order of the given directories, and the directories that were left out."""

    rows: list[Row]
    skipped: list[Skipped]


def collect(directories: Iterable[str | Path]) -> Collected:
    """Read metrics.json and manifest.json of run directories. A directory that is broken, or no run, is left out with
    the reason: some runs of a sweep may have failed."""
    collected = Collected([], [])
    for directory in map(Path, directories):
        try:
            collected.rows.append(_row(directory))
        except (OSError, ValueError, RecursionError) as error:
            collected.skipped.append(Skipped(directory, _why(error)))
    return collected


def own_page(page: Path) -> bool:
    """Whether a file is a page of this tool."""
    if not page.is_file():
        return False
    with page.open("rb") as file:
        return MARK in file.read(2**12)


def write_index(
    path: str | Path,
    rows: Sequence[Row],
    skipped: Sequence[Skipped] = (),
    names: Mapping[Path, str] | None = None,
    ranking: Markup | None = None,
) -> None:
    """Write the page, and the same table beside it as `.csv`. Runs below the page's folder are linked. Without
    `names` by directory, the name of a run elsewhere is that of its directory, so that a shared page tells no
    paths. `ranking` is the section of `attacks.report.leaderboard`."""
    path, script = Path(path), (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    arms = [arm for arm in ARMS if any(arm in row.arms for row in rows)]
    page = environment().get_template("index.html")
    directories = [*(row.directory for row in rows), *(each.directory for each in skipped)]
    places = {directory: place(path.parent, directory) for directory in directories}
    called = names or {directory: name for directory, (name, _) in places.items()}
    text = page.render(
        arms=arms,
        names=ARMS,
        wide=any(row.wide for row in rows),
        measures=[(measure, measure_name(measure)) for measure in MEASURES],
        rows=[(row, called[row.directory], places[row.directory][1]) for row in rows],
        skipped=[(called[each.directory], each.reason) for each in skipped],
        ranking=ranking,
        script=Markup(script),
        allowed=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        csv=path.with_suffix(".csv").name,
    )
    write_text(path, text)
    write_rows(path.with_suffix(".csv"), [row.flat(called[row.directory]) for row in rows])


def place(folder: Path, directory: Path) -> tuple[str, str | None]:
    """The name of a run on a page in `folder`, and the link to its report: None without a report, and for one outside
    the folder, also by a symbolic link."""
    report, folder = (directory / "report.html").resolve(), folder.resolve()
    if not directory.resolve().is_relative_to(folder):
        return directory.resolve().name, None
    name = directory.resolve().relative_to(folder).as_posix()
    inside = report.is_file() and report.is_relative_to(folder)
    return name, quote(report.relative_to(folder).as_posix(), safe="/") if inside else None


def _row(directory: Path) -> Row:
    content = read(directory / "metrics.json")
    manifest = read(directory / "manifest.json") if (directory / "manifest.json").is_file() else {}
    threat, wide, cost = (mapping(content.get(key)) for key in ("threat", "wide", "cost"))
    queries, clusters = content.get("queries"), content.get("clusters")
    if not isinstance(queries, list) or not threat:
        raise ValueError("`metrics.json` must be that of a run; it has no `queries` or no `threat`")
    arms = _arms(content.get("arms"))
    if "eot" not in arms:
        raise ValueError("`metrics.json` must have the arm `eot`; it has " + (", ".join(arms) or "no arms"))
    pictures, groups = judged(content) if isinstance(clusters, list) else (len(queries), None)
    passes = [count(cost.get(key)) for key in ("forward", "backward")]
    return Row(
        directory=directory,
        preset=word(content.get("preset")),
        encoder=_encoder(content.get("encoder") or manifest.get("encoder")),
        threat=_threat(threat),
        transforms=word(threat.get("transforms")) or "?",
        seed=count(content.get("seed")),
        pictures=pictures,
        clusters=groups,
        arms=arms,
        wide=_arms(wide.get("arms")),
        worst=interval(mapping(mapping(content["arms"]).get("eot")).get("worst_cosine")),
        passes=None if None in passes else sum(filter(None, passes)),
        seconds=number(cost.get("seconds")),
        warnings=_warnings(content),
        widened=number(wide.get("factor")),
        subject=json.dumps([mapping(content.get("encoder")).get(key) for key in SUBJECT], sort_keys=True),
    )


def _arms(content: object) -> dict[str, dict[str, Interval]]:
    rows = {arm: mapping(mapping(content).get(arm)) for arm in ARMS}
    arms = {arm: {key: value for key in MEASURES if (value := interval(row.get(key)))} for arm, row in rows.items()}
    return {arm: values for arm, values in arms.items() if values}


def _encoder(content: object) -> str:
    encoder = mapping(content)
    name = ":".join(word(encoder.get(key)) for key in ("name", "model") if encoder.get(key) is not None)
    weights = encoder.get("weights")
    return word(name + (f" ({Path(word(weights)).name})" if weights else "")) or "?"


def _threat(threat: Mapping[str, Any]) -> str:
    patch, eps = mapping(threat.get("patch")), number(threat.get("eps"))
    if patch:
        area = number(mapping(patch.get("area")).get("mean"))
        return "patch" + ("" if area is None else f", {area:.1%} of the picture")
    norm = word(threat.get("norm"))
    if eps is None:
        return norm
    return f"{norm} {eps * 255:.3g}/255" if norm == "linf" else f"{norm} {eps:.4g}"


def _warnings(content: dict[str, Any]) -> int | None:
    """The number of warnings; None for a run that lacks a value which they need."""
    try:
        return len(warnings(content))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"`{Path(error.filename or '').name}`: {(error.strerror or 'cannot be read').lower()}"
    return word(str(error)) or type(error).__name__


def _columns(name: str, value: Interval | None) -> dict[str, object]:
    mean, low, high, kind = value or (None, None, None, None)
    return {name: mean, f"{name}_low": low, f"{name}_high": high, f"{name}_kind": kind}


def interval(content: object) -> Interval | None:
    """The interval in a mapping with three finite numbers; None for anything else."""
    row = mapping(content)
    mean, low, high = (number(row.get(key)) for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return None
    return Interval(mean, low, high, "range" if row.get("kind") == "range" else "interval")
