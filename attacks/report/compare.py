"""Comparisons of runs, picture by picture, from the files in their directories.

Only runs of the same protocol are compared: same views, gallery, aim and pixels. The files may come from others, so
every value is checked.
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attacks.evaluation.clusters import by_cluster, totals
from attacks.evaluation.comparisons import difference
from attacks.evaluation.intervals import Interval
from attacks.evaluation.per_image import judged_rows, made_from
from attacks.evaluation.significance import Measure, holm, needed, sign_flip
from attacks.runtime.tables import meant
from attacks.runtime.untrusted import count, mapping, number, read, text

#: The most pairs of runs that are compared at a time.
MOST_PAIRS = 2_000
ARM = "eot"
MEASURES: tuple[Measure, ...] = ("success", "cosine")
#: The parts of the configuration that are the attack; the views belong to the protocol.
THREAT = ("perturbation", "attack", "optimiser", "objective", "penalty", "risk", "draws")


class Picture(NamedTuple):
    """The identity of a picture: its name, and the sha256 of its pixels, empty where the run lacks it."""

    name: str
    pixels: str


@dataclass(frozen=True)
class Judged:
    """The protocol of a run, equal in runs that can be compared, its values by (bank, measure) and picture, the
    cluster of each picture, the threat apart from its radius `eps`, the primary measure, and whether the pictures are
    those that a shared perturbation was `made` from."""

    protocol: Mapping[str, Any]
    values: Mapping[tuple[str, str], Mapping[Picture, float]]
    clusters: Mapping[Picture, str]
    threat: str
    eps: float | None
    primary: str
    made: bool = False

    @property
    def key(self) -> str:
        """The protocol, hashable."""
        return json.dumps(self.protocol, sort_keys=True)


@dataclass(frozen=True)
class Pair:
    """The difference of two runs in one measure: the second minus the first, over the clusters of the pictures that
    both attacked. The p values of sign flips are None where they could not be below 0.05; `needed` clusters are for
    that, where `p_holm` is None."""

    first: str
    second: str
    bank: str
    measure: str
    pictures: int
    clusters: int
    difference: Interval
    p: float | None
    p_holm: float | None = None
    needed: int | None = None

    def row(self) -> dict[str, object]:
        """A row of pairs.csv."""
        head: dict[str, object] = {"first": self.first, "second": self.second, "arm": ARM, "bank": self.bank}
        head |= {"measure": self.measure, "pictures": self.pictures, "clusters": self.clusters}
        return head | self.difference._asdict() | {"p": self.p, "p_holm": self.p_holm}


def judged(run: Path) -> Judged:
    """Read metrics.json, manifest.json and per_image.csv of a run directory.

    Raises:
        ValueError, OSError: a file is missing, too large, or malformed.
    """
    content, manifest = (read(run / f"{name}.json") for name in ("metrics", "manifest"))
    config, threat = mapping(manifest.get("config")), mapping(content.get("threat"))
    views = {key: value for key, value in mapping(content.get("bank")).items() if key != "refine"}
    protocol = {
        "seed": content.get("seed"),
        "bank": [views, _with_order(config.get("transforms")), config.get("printer")],
        "gallery": [content.get(key) for key in ("gallery", "classes", "identities")],
        "aim": [bool(threat.get("targeted")), mapping(config.get("objective")).get("target")],
    }
    names, digests = (value if isinstance(value, list) else [] for value in map(content.get, ("queries", "pixels")))
    pixels = {str(name): str(digest) for name, digest in zip(names, digests, strict=False)}
    wide = f"wide x{mapping(content.get('wide')).get('factor')}"  # another factor is another bank
    values: dict[tuple[str, str], dict[Picture, float]] = {}
    clusters: dict[Picture, str] = {}
    try:
        rows = judged_rows([*csv.DictReader(io.StringIO(text(run / "per_image.csv")))])
        for row in rows:
            if row.get("arm") != ARM or row.get("picture") is None:
                continue
            name, bank = meant(row["picture"]), row.get("bank") or ""
            picture = Picture(name, pixels.get(name, ""))
            clusters[picture] = row.get("cluster") or name
            for measure in MEASURES:
                value = _number(row.get(measure))
                if value is not None and (measure == "cosine" or 0 <= value <= 1):
                    column = values.setdefault((wide if bank == "wide" else bank, measure), {})
                    column[picture] = value
    except csv.Error as error:
        raise ValueError(f"per_image.csv is not a CSV file: {error}") from None
    values |= _radii(run, pixels)
    if not values:
        raise ValueError(f"per_image.csv has no {' or '.join(MEASURES)} of the arm {ARM}")
    attack = {key: config.get(key) for key in THREAT}
    attack["perturbation"] = {k: v for k, v in mapping(attack["perturbation"]).items() if k != "eps"}
    primary = mapping(content.get("primary")).get("measure")
    return Judged(
        protocol,
        values,
        clusters,
        json.dumps(attack, sort_keys=True),
        number(threat.get("eps")),
        "cosine" if primary == "cosine" else "success",
        made_from(rows),
    )


def _with_order(node: Any) -> Any:
    """A part of a configuration in which equality also compares the order of stages."""
    if not isinstance(node, dict):
        return node
    return {
        key: [[name, _with_order(each)] for name, each in value.items()]
        if key == "stages" and isinstance(value, dict)
        else _with_order(value)
        for key, value in node.items()
    }


def _radii(run: Path, pixels: Mapping[str, str]) -> dict[tuple[str, str], dict[Picture, float]]:
    """The smallest radii of a run with `attack=radius`, a measure for each norm. One beyond the largest counts as the
    largest."""
    if not (run / "radii.csv").is_file():
        return {}
    column: dict[Picture, float] = {}
    try:
        for row in csv.DictReader(io.StringIO(text(run / "radii.csv"))):
            value = _number(row.get("radius") or row.get("largest"))
            if value is not None and value >= 0 and row.get("picture") is not None:
                name = meant(row["picture"])
                column[Picture(name, pixels.get(name, ""))] = value
    except csv.Error as error:
        raise ValueError(f"radii.csv is not a CSV file: {error}") from None
    norm = mapping(read(run / "metrics.json").get("threat")).get("norm")
    return {("same", f"radius {norm}"): column} if column else {}


def compared(runs: Mapping[str, Judged]) -> tuple[list[Pair], list[tuple[str, str, str]]]:
    """All pairs of runs by name; and the pairs that cannot be compared, each with the reason and what to do.

    P values are corrected over the pairs of a bank and measure whose runs have one and the same threat, a family for
    each threat, and over those of different threats, which are a family too.

    Raises:
        ValueError: too many runs.
    """
    if math.comb(len(runs), 2) > MOST_PAIRS:
        raise ValueError(f"`RUN`: {len(runs)} runs make more than {MOST_PAIRS} pairs; compare fewer at a time")
    pairs, refused = [], []
    for first, second in itertools.combinations(runs, 2):
        result = _differences(runs[first], runs[second], (first, second))
        if isinstance(result, str):
            refused.append((first, second, result))
        else:
            pairs += result
    families: dict[tuple[object, ...], list[int]] = {}
    for i, pair in enumerate(pairs):
        families.setdefault((pair.bank, pair.measure, _threat(runs[pair.first], runs[pair.second])), []).append(i)
    for family in families.values():
        few = needed(len(family)) * (1 + any(runs[pairs[i].first].made or runs[pairs[i].second].made for i in family))
        if any(pairs[i].p is None or pairs[i].clusters < few for i in family):
            for i in family:
                pairs[i] = replace(pairs[i], needed=few)
            continue
        for i, p in zip(family, holm([pairs[i].p or 0.0 for i in family]), strict=True):
            pairs[i] = replace(pairs[i], p_holm=p)
    return pairs, refused


def _differences(first: Judged, second: Judged, names: tuple[str, str]) -> list[Pair] | str:
    """The differences in every bank and measure that both have, or the reason why there are none."""
    unequal = [key for key in first.protocol if first.protocol[key] != second.protocol[key]]
    if unequal:
        return "; ".join(f"another {key}: {_advice(key, first, second)}" for key in unequal)
    pairs = []
    for (bank, measure), column in first.values.items():
        other = second.values.get((bank, measure), {})
        shared = [picture for picture in column if picture in other]
        if len(shared) < 2:
            continue
        one, two = (torch.tensor([each[key] for key in shared], dtype=torch.float64) for each in (column, other))
        clusters = [first.clusters[picture] for picture in shared]
        one, two = by_cluster(one, clusters), by_cluster(two, clusters)
        trials = _views(first) * totals(torch.ones(len(shared)), clusters)
        made = first.made or second.made
        p = sign_flip(two - one) if len(one) >= needed() and not made else None
        value = difference(measure, two, one, trials, made)
        pairs.append(Pair(*names, bank, measure, len(shared), len(one), value, p))
    return pairs or "fewer than two pictures in common: run both with the same data and data.count"


def _threat(first: Judged, second: Judged) -> tuple[object, ...]:
    """What two runs have in common: protocol and threat of both, or nothing."""
    keys = [(run.key, run.threat, run.eps) for run in (first, second)]
    return keys[0] if keys[0] == keys[1] else ()


def _advice(key: str, first: Judged, second: Judged) -> str:
    """How two runs that differ in a part of the protocol are made comparable."""
    one, two = first.protocol[key], second.protocol[key]
    if key == "seed":
        return "run both with " + (f"seed={count(one)}" if count(one) is not None else "the same seed")
    if key == "bank":
        keys = zip(("evaluate.views", "transforms", "printer"), one, two, strict=True)
        parts = [f"the same {name}" for name, mine, other in keys if mine != other]
        if (views := count(one[0].get("views"))) is not None and views != two[0].get("views"):
            parts[0] = f"evaluate.views={views}"
        return f"run both with {' and '.join(parts)}"
    if key == "gallery":
        return "run both with the same data"
    return "run both with the same objective"


def _views(run: Judged) -> int:
    """Views of each picture; 1 where the run lacks the number, which makes intervals wide."""
    views = mapping(run.protocol["bank"][0]).get("views")
    return views if type(views) is int and views > 0 else 1


def _number(cell: str | None) -> float | None:
    try:
        value = float(cell or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
