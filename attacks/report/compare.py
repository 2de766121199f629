"""Runs compared with each other, picture by picture, from the files in their directories.

Only runs of one protocol are compared: same views, same gallery, same aim, same pixels. Files are read with distrust,
for a run may be a stranger's.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attacks.evaluation.intervals import Interval
from attacks.evaluation.significance import Measure, holm
from attacks.evaluation.significance import compared as beside
from attacks.runtime.tables import meant
from attacks.runtime.untrusted import mapping, read, text

#: More are not compared at a time.
MOST_PAIRS = 2_000
ARM = "eot"
MEASURES: tuple[Measure, ...] = ("success", "cosine")


class Picture(NamedTuple):
    """Which picture a number is of: its name, and the sha256 of its pixels where the run says it."""

    name: str
    pixels: str


@dataclass(frozen=True)
class Judged:
    """What a run must share with another to be compared, and its values by (bank, measure) and picture."""

    protocol: Mapping[str, Any]
    values: Mapping[tuple[str, Measure], Mapping[Picture, float]]


@dataclass(frozen=True)
class Pair:
    """How two runs differ in one measure: the second minus the first, over the pictures that both attacked."""

    first: str
    second: str
    bank: str
    measure: str
    pictures: int
    difference: Interval
    test: str
    p: float
    p_holm: float = math.nan

    def row(self) -> dict[str, object]:
        """A row of pairs.csv."""
        head: dict[str, object] = {"first": self.first, "second": self.second, "arm": ARM, "bank": self.bank}
        head |= {"measure": self.measure, "pictures": self.pictures, **self.difference._asdict()}
        return head | {"test": self.test, "p": self.p, "p_holm": self.p_holm}


def judged(run: Path) -> Judged:
    """What metrics.json, manifest.json and per_image.csv of a run directory say.

    Raises:
        ValueError, OSError: a file that is missing, too large, or not what its name says.
    """
    content, plan = (read(run / f"{name}.json") for name in ("metrics", "manifest"))
    config, threat = mapping(plan.get("config")), mapping(content.get("threat"))
    views = {key: value for key, value in mapping(content.get("bank")).items() if key != "refine"}
    protocol = {
        "seed": content.get("seed"),
        "bank": [views, config.get("transforms"), config.get("printer")],
        "gallery": [content.get(key) for key in ("gallery", "classes", "identities")],
        "aim": [bool(threat.get("targeted")), mapping(config.get("objective")).get("target")],
    }
    names, pixels = (_list(content.get(key)) for key in ("queries", "pixels"))
    known = {str(name): str(digest) for name, digest in zip(names, pixels, strict=False)}
    wide = f"wide x{mapping(content.get('wide')).get('factor')}"  # another factor, another bank
    values: dict[tuple[str, Measure], dict[Picture, float]] = {}
    try:
        for row in csv.DictReader(io.StringIO(text(run / "per_image.csv"))):
            if row.get("arm") == ARM and row.get("picture") is not None:
                name = meant(row["picture"])
                picture = Picture(name, known.get(name, ""))
                for measure in MEASURES:
                    value = _number(row.get(measure))
                    if value is not None and (measure == "cosine" or 0 <= value <= 1):
                        bank = row.get("bank") or ""
                        values.setdefault((wide if bank == "wide" else bank, measure), {})[picture] = value
    except csv.Error as error:
        raise ValueError(f"per_image.csv is not a CSV file: {error}") from None
    if not values:
        raise ValueError(f"per_image.csv has no {' or '.join(MEASURES)} of the arm {ARM}")
    return Judged(protocol, values)


def compare(first: Judged, second: Judged, names: tuple[str, str]) -> list[Pair] | str:
    """The differences in every bank and measure that both have, or why there are none."""
    other = [what for what in first.protocol if first.protocol[what] != second.protocol[what]]
    if other:
        return "another " + ", another ".join(other)
    pairs = []
    for (bank, measure), ours in first.values.items():
        theirs = second.values.get((bank, measure), {})
        shared = [picture for picture in ours if picture in theirs]
        if len(shared) < 2:
            continue
        one, two = (torch.tensor([each[key] for key in shared], dtype=torch.float64) for each in (ours, theirs))
        answer = beside(measure, two, one, _views(first))
        pairs.append(Pair(*names, bank, measure, len(shared), answer.difference, answer.test, answer.p))
    return pairs or "fewer than two pictures in common"


def compared(runs: Mapping[str, Judged]) -> tuple[list[Pair], list[tuple[str, str, str]]]:
    """All pairs of runs by name, p values corrected for all of the pairs in that bank and measure; and the pairs that
    are not compared, each with the reason.

    Raises:
        ValueError: too many runs.
    """
    if math.comb(len(runs), 2) > MOST_PAIRS:
        raise ValueError(f"`RUN`: {len(runs)} runs make more than {MOST_PAIRS} pairs; compare fewer at a time")
    pairs, silent = [], []
    for one, two in itertools.combinations(runs, 2):
        answer = compare(runs[one], runs[two], (one, two))
        if isinstance(answer, str):
            silent.append((one, two, answer))
        else:
            pairs += answer
    for at in dict.fromkeys((pair.bank, pair.measure) for pair in pairs):
        family = [i for i, pair in enumerate(pairs) if (pair.bank, pair.measure) == at]
        for i, p in zip(family, holm([pairs[i].p for i in family]), strict=True):
            pairs[i] = replace(pairs[i], p_holm=p)
    return pairs, silent


def _views(run: Judged) -> int:
    """Of each picture; 1 where the run does not say it, which makes intervals wide."""
    views = mapping(run.protocol["bank"][0]).get("views")
    return views if type(views) is int and views > 0 else 1


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(word: str | None) -> float | None:
    try:
        value = float(word or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
