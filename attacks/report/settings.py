"""The settings of runs, those in which they differ, and the curve of runs that differ in one key: for each encoder,
success by the value of the key."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from attacks.runtime.untrusted import mapping, number, word


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
    remainder = {key: column for key, column in columns.items() if key.partition(".")[0] not in groups}
    return remainder | {group: columns[f"{group}.name"] for group in groups}


class Curve(NamedTuple):
    """Runs that differ in one key and in their encoders: for each encoder the runs' values (those of
    `attacks.report.runs`) by their place on the axis of the key. `ticks` are the values of the key by place; a
    place is the index of those that are no numbers."""

    key: str
    lines: Mapping[str, Sequence[tuple[float, Mapping[str, Any]]]]
    ticks: Mapping[float, str]


def curve_of(settings: Sequence[Mapping[str, str]], values: Sequence[Mapping[str, Any]]) -> Curve | None:
    """The curve of runs that differ in one key other than the encoder's, from settings and values; else None."""
    columns = differing_settings(settings)
    keys = [key for key in columns if key.partition(".")[0] != "encoder"]
    if len(keys) != 1 or not all(run["eot_success"] for run in values):
        return None
    texts = [str(value) for value in columns[keys[0]]]
    numbers = [value for text in texts if (value := _share(text)) is not None]
    places = numbers if len(numbers) == len(texts) else [*map(float, map([*dict.fromkeys(texts)].index, texts))]
    lines: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for place, run in sorted(zip(places, values, strict=True), key=lambda item: item[0]):
        lines.setdefault(run["encoder"], []).append((place, run))
    if any(len({place for place, _ in line}) < len(line) for line in lines.values()):
        return None
    return Curve(keys[0], lines, dict(zip(places, texts, strict=True)))


def _share(text: str) -> float | None:
    """A number, or a fraction such as 8/255."""
    top, _, bottom = text.partition("/")
    with suppress(ValueError, ZeroDivisionError):
        return number(float(top) / float(bottom or 1))
    return None
