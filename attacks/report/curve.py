"""The curve of runs that differ in one key: for each encoder, success by the value of the key."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from attacks.report.settings import differing_settings
from attacks.runtime.untrusted import number


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
