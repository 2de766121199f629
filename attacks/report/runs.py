"""Summaries of runs, from metrics.json and manifest.json, which may come from others: every value is checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attacks.inference.bounded import Interval
from attacks.report.columns import Cell, Column
from attacks.report.settings import differing_settings, run_settings
from attacks.report.warnings import warnings
from attacks.report.words import ARMS, fit_arms, measure_name, sample_counts
from attacks.runtime.untrusted import count, mapping, number, read_untrusted, word

#: The arm by which runs are compared.
ARM = "eot"
MEASURES = ("success", "cosine")
#: The most keys, and the most characters, of a run's name with what differs.
MOST_KEYS, LONGEST = 3, 100
#: The groups of columns on the page, and the columns: those of index.csv, in its order.
GROUPS = ("", "attack", *map(measure_name, MEASURES), "cost and settings")


def _column(key: str, page: str, group: int, terminal: bool = False, kind: Any = "interval") -> Column:
    return Column(lambda run: run.values[key], key, key * terminal, page, GROUPS[group], kind)


def _arm_columns(prefix: str, names: Mapping[str, str]) -> list[Column]:
    columns = [(arm, name, key, i) for arm, name in names.items() for i, key in enumerate(MEASURES, 2)]
    return [_column(f"{prefix}{arm}_{key}", name, i, "eot" in arm and name != "") for arm, name, key, i in columns]


RUNS = [
    _column("run", "run", 0, True, "text"),
    _column("preset", "preset", 4, False, "text"),
    _column("encoder", "encoder", 1, True, "text"),
    _column("threat", "threat", 1, True, "text"),
    _column("transforms", "views", 1, True, "text"),
    *(_column(key, key, 4, True, "number") for key in ("seed", "pictures", "clusters")),
    *_arm_columns("", ARMS),
    _column("fit_pictures", "fit pictures", 4, kind="number"),
    _column("fit_success", "EOT, fit pictures", 2),
    *_arm_columns("wide_", {arm: "EOT, wider views" if arm == ARM else "" for arm in ARMS}),
    _column("eot_worst_cosine", "EOT, most resistant view", 3),
    _column("passes", "encoder passes", 4, kind="number"),
    *(_column(key, key, 4, kind="number") for key in ("seconds", "warnings")),
]


@dataclass(frozen=True)
class RunSummary:
    """The values of a run by the keys of `RUNS`, None where it lacks one."""

    directory: Path
    values: Mapping[str, Any]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.values["run"])


def named_runs(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs, with what differs in their names, where that is at most `MOST_KEYS` keys."""
    columns = differing_settings([run.settings for run in runs])
    if not 0 < len(columns) <= MOST_KEYS:
        return [*runs]
    words = [[f"{key.rpartition('.')[2]}={value}" for value in column] for key, column in columns.items()]
    labels = [", ".join(parts) for parts in zip(*words, strict=True)]
    names = [f"{run.name}: {label[:LONGEST]}" for run, label in zip(runs, labels, strict=True)]
    return [replace(run, values={**run.values, "run": name}) for run, name in zip(runs, names, strict=True)]


def collect(names: Mapping[Path, str]) -> tuple[list[RunSummary], list[tuple[str, str]]]:
    """Read run directories by their names. Returns the runs, and (name, reason) for each directory that is broken or
    not a run: some runs of a sweep may have failed."""
    runs, omissions = [], []
    for directory, name in names.items():
        try:
            runs.append(_read_run(directory, name))
        except OSError as error:
            reason = f"`{Path(error.filename or '').name}`: {(error.strerror or 'cannot be read').lower()}"
            omissions.append((name, reason))
        except (ValueError, RecursionError) as error:
            omissions.append((name, word(str(error)) or type(error).__name__))
    return named_runs(runs), omissions


def _read_run(directory: Path, name: str) -> RunSummary:
    content = read_untrusted(directory / "metrics.json")
    manifest = read_untrusted(directory / "manifest.json") if (directory / "manifest.json").is_file() else {}
    threat, wide, cost, split = (mapping(content.get(key)) for key in ("threat", "wide", "cost", "split"))
    fit = split.get("fit") if isinstance(split.get("fit"), list) else None
    queries = content.get("queries")
    if not isinstance(queries, list) or not threat:
        raise ValueError("`metrics.json` must be that of a run; it has no `queries` or no `threat`")
    arms = _arms(content.get("arms"))
    if not any(arms[f"{ARM}_{measure}"] for measure in MEASURES):
        names = [arm for arm in ARMS if any(arms[f"{arm}_{measure}"] for measure in MEASURES)]
        raise ValueError(f"`metrics.json` must have the arm `{ARM}`; it has " + (", ".join(names) or "no arms"))
    pictures, clusters = sample_counts(content) if isinstance(content.get("clusters"), list) else (len(queries), None)
    passes = [count(cost.get(key)) for key in ("forward", "backward")]
    values: dict[str, Cell] = {
        "run": name,
        "preset": word(content.get("preset")),
        "encoder": _encoder(content.get("encoder") or manifest.get("encoder")),
        "threat": _threat(threat),
        "transforms": (word(threat.get("transforms")) or "?")
        + "; means weighted by `weight`" * bool(content.get("weights")),
        "seed": count(content.get("seed")),
        "pictures": pictures,
        "clusters": clusters,
        **arms,
        "fit_pictures": None if not fit else len(fit),
        "fit_success": interval_cell(mapping(mapping(fit_arms(content).get("same")).get(ARM)).get("success")),
        **_arms(wide.get("arms"), "wide_"),
        "eot_worst_cosine": interval_cell(mapping(mapping(content["arms"]).get(ARM)).get("worst_cosine")),
        "passes": None if None in passes else sum(filter(None, passes)),
        "seconds": number(cost.get("seconds")),
        "warnings": _warnings(content),
    }
    return RunSummary(directory, values, run_settings(manifest))


def _arms(content: object, prefix: str = "") -> dict[str, Interval | None]:
    arms = {arm: mapping(mapping(content).get(arm)) for arm in ARMS}
    return {f"{prefix}{arm}_{key}": interval_cell(row.get(key)) for arm, row in arms.items() for key in MEASURES}


def _encoder(content: object) -> str:
    encoder = mapping(content)
    name = ":".join(word(encoder.get(key)) for key in ("name", "model") if encoder.get(key) is not None)
    weights = encoder.get("weights")
    return word(name + (f" ({Path(word(weights)).name})" if weights else "")) or "?"


def _threat(threat: Mapping[str, Any]) -> str:
    if patch := mapping(threat.get("patch")):
        area = number(mapping(patch.get("area")).get("mean"))
        return "patch" + ("" if area is None else f", {area:.1%} of the picture")
    norm, eps = word(threat.get("norm")), number(threat.get("eps"))
    size = "" if eps is None else f" {eps * 255:.3g}/255" if norm == "linf" else f" {eps:.4g}"
    return norm + " up to" * ("least_eps" in threat) + size


def _warnings(content: dict[str, Any]) -> int | None:
    """The number of warnings; None for a run that lacks a value which they need."""
    try:
        return len(warnings(content))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def interval_cell(content: object) -> Interval | None:
    """The interval in a mapping with three finite numbers; None for anything else."""
    row = mapping(content)
    mean, low, high = (number(row.get(key)) for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return None
    return Interval(mean, low, high, "range" if row.get("kind") == "range" else "interval")
