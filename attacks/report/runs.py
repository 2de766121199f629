"""Summaries of runs, from metrics.json and manifest.json, which may come from others: every value is checked."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from attacks.inference.bounded import Interval
from attacks.report.columns import Cell, Column
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


def run_settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a run's configuration that its numbers depend on, and their values as text."""
    items = {word(key): value for key, value in mapping(manifest.get("identity")).items() if isinstance(value, str)}
    return {
        key: word(value).strip('"')
        for key, value in items.items()
        if " " not in key and ("." in key or key == "seed") and not key.startswith("engine.")
    }


def differing_settings(runs: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """The keys in which settings differ, with the value in each. Where the choice of a group differs, as that of
    `perturbation`, it stands for all keys of the group."""
    keys = dict.fromkeys(key for settings in runs for key in settings)
    columns = {key: [settings.get(key) for settings in runs] for key in keys}
    columns = {key: column for key, column in columns.items() if len({*column}) > 1}
    groups = [key.removesuffix(".name") for key in columns if key.count(".") == 1 and key.endswith(".name")]
    columns = {key: column for key, column in columns.items() if key.partition(".")[0] not in groups} | {
        group: columns[f"{group}.name"] for group in groups
    }
    return columns


def named_runs(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """The runs, with what differs in their names, where that is at most `MOST_KEYS` keys."""
    columns = differing_settings([run.settings for run in runs])
    if not 0 < len(columns) <= MOST_KEYS:
        return [*runs]
    words = [[f"{key.rpartition('.')[2]}={value}" for value in column] for key, column in columns.items()]
    labels = [", ".join(parts) for parts in zip(*words, strict=True)]
    names = [f"{run.name}: {label[:LONGEST]}" for run, label in zip(runs, labels, strict=True)]
    return [replace(run, values={**run.values, "run": name}) for run, name in zip(runs, names, strict=True)]


class Curve(NamedTuple):
    """Runs that differ in one key and in their encoders: for each encoder the runs by their place on the axis of the
    key. `ticks` are the values by place; where they are no numbers, a place is their index."""

    key: str
    lines: Mapping[str, Sequence[tuple[float, RunSummary]]]
    ticks: Mapping[float, str]


def curve_of(runs: Sequence[RunSummary]) -> Curve | None:
    """The curve of runs that differ in one key other than the encoder's; else None."""
    columns = differing_settings([run.settings for run in runs])
    keys = [key for key in columns if key.partition(".")[0] != "encoder"]
    if len(keys) != 1 or not all(run.values[f"{ARM}_success"] for run in runs):
        return None
    texts = [str(value) for value in columns[keys[0]]]
    numbers = [value for text in texts if (value := _share(text)) is not None]
    places = numbers if len(numbers) == len(texts) else [*map(float, map([*dict.fromkeys(texts)].index, texts))]
    lines: dict[str, list[tuple[float, RunSummary]]] = {}
    for place, run in sorted(zip(places, runs, strict=True), key=lambda item: item[0]):
        lines.setdefault(run.values["encoder"], []).append((place, run))
    if any(len({place for place, _ in line}) < len(line) for line in lines.values()):
        return None
    return Curve(keys[0], lines, dict(zip(places, texts, strict=True)))


def _share(text: str) -> float | None:
    """A number, or a fraction such as 8/255."""
    top, _, bottom = text.partition("/")
    with suppress(ValueError, ZeroDivisionError):
        return number(float(top) / float(bottom or 1))
    return None


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
