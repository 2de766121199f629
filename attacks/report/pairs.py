"""Differences between runs of the same protocol, picture by picture, from files that may come from others."""

import csv
import io
import itertools
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.per_image import has_fit_rows, judged_rows, range_interval
from attacks.inference.bounded import Interval
from attacks.inference.pairs import fewest_clusters, sign_flips
from attacks.report.columns import Column
from attacks.report.runs import ARM, MEASURES
from attacks.report.settings import differing_settings, run_settings
from attacks.report.words import interval_text, p_value
from attacks.runtime.tables import unescaped_text
from attacks.runtime.untrusted import count, mapping, number, read_untrusted, text

#: The most pairs of runs that are compared at a time: of more than 1,638 no test of a table can be significant.
MAX_PAIRS = 1_600
#: The parts of the configuration that are the attack; the views belong to the protocol.
THREAT = ("perturbation", "attack", "optimiser", "objective", "penalty", "risk", "draws")
#: The name of a picture, and the sha256 of its pixels, empty where the run lacks it.
PictureKey = tuple[str, str]


@dataclass(frozen=True)
class RunScores:
    """The protocol of a run (views, gallery, aim), equal in runs that can be compared, its values by (bank, measure)
    and picture, the cluster of each picture, the threat apart from its radius `eps`, the primary measure, whether
    the pictures are those that a shared perturbation was made from (`fit`), and the keys of the run."""

    protocol: Mapping[str, Any]
    values: Mapping[tuple[str, str], Mapping[PictureKey, float]]
    clusters: Mapping[PictureKey, str]
    threat: str
    eps: float | None
    primary: str
    fit: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def attack(self) -> tuple[str, str]:
        """Protocol and threat, hashable: equal in runs that differ in eps and encoder alone."""
        return json.dumps(self.protocol, sort_keys=True), self.threat


@dataclass(frozen=True)
class RunPair:
    """The second run minus the first in one measure, over the clusters of the pictures that both attacked, at once
    with the other pairs of a table. p is None where it could not be below 0.05, as with `clusters_needed`."""

    first: str
    second: str
    bank: str
    measure: str
    pictures: int
    clusters: int
    difference: Interval
    p: float | None = None
    clusters_needed: int | None = None


#: A pair without its difference, and the values (C,) of its first and second run by cluster.
Trial = tuple[RunPair, Tensor, Tensor]
NO_DIFFERENCE = Interval(math.nan, math.nan, math.nan, "range")

#: The table of pairs, pairs.csv.
PAIRS = [
    *(Column(attrgetter(key), key, key) for key in ("first", "second")),
    Column(lambda _: ARM, "arm"),
    Column(attrgetter("bank"), "bank", "bank"),
    Column(lambda row: row.measure, "measure", f"measure of {ARM}"),
    *(Column(attrgetter(key), key, key) for key in ("pictures", "clusters")),
    Column(lambda row: row.difference, "mean", kind="interval"),
    Column(lambda row: interval_text(row.difference._asdict(), sign="+"), terminal="second minus first"),
    Column(attrgetter("p"), "p"),
    Column(lambda row: p_value(row.p, row.clusters_needed), terminal="p"),
]


def read_pair_scores(run: Path) -> RunScores:
    """Read the files of a run directory. Raises ValueError or OSError where one is missing or malformed."""
    content, manifest = (read_untrusted(run / f"{name}.json") for name in ("metrics", "manifest"))
    config, threat = mapping(manifest.get("config")), mapping(content.get("threat"))
    held_out_views = mapping(content.get("bank"))
    views = {key: value for key, value in held_out_views.items() if key not in ("refine", "side")}
    side = held_out_views.get("side") if _has_share([config.get("transforms"), config.get("defence")]) else None
    rows = judged_rows(untrusted_rows(run / "per_image.csv"))
    columns = ("target", "eps")  # of a table
    targets = {str(row.get("picture")): [row.get(name) for name in columns] for row in rows if {*columns} & {*row}}
    protocol = {
        "seed": content.get("seed"),
        "bank": [views, _with_order(config.get("transforms")), config.get("printer"), side],
        "gallery": [content.get(key) for key in ("gallery", "classes", "identities")],
        "aim": [bool(threat.get("targeted")), mapping(config.get("objective")).get("target"), targets],
    }
    names, digests = (value if isinstance(value, list) else [] for value in map(content.get, ("queries", "pixels")))
    pixels = {str(name): str(digest) for name, digest in zip(names, digests, strict=False)}
    wide = f"wide x{mapping(content.get('wide')).get('factor')}"  # another factor is another bank
    values: dict[tuple[str, str], dict[PictureKey, float]] = {}
    clusters: dict[PictureKey, str] = {}
    for row in rows:
        if row.get("arm") != ARM or row.get("picture") is None:
            continue
        picture, bank = _picture(row, pixels), row.get("bank") or ""
        clusters[picture] = row.get("cluster") or picture[0]
        for measure in MEASURES:
            value = _number(row.get(measure))
            if value is not None and (measure == "cosine" or 0 <= value <= 1):
                values.setdefault((wide if bank == "wide" else bank, measure), {})[picture] = value
    if (run / "radii.csv").is_file():  # of `attack=radius`; a radius beyond the largest counts as the largest
        radii = untrusted_rows(run / "radii.csv")
        cells = [(_picture(row, pixels), _number(row.get("radius") or row.get("largest"))) for row in radii]
        column = {key: value for key, value in cells if key in clusters and value is not None and value >= 0}
        values |= {("same", f"radius {threat.get('norm')}"): column} if column else {}
    if not values:
        raise ValueError(f"per_image.csv has no {' or '.join(MEASURES)} of the arm {ARM}")
    attack = {key: config.get(key) for key in THREAT} | {"plugins": threat.get("plugins")}
    attack["perturbation"] = {k: v for k, v in mapping(attack["perturbation"]).items() if k != "eps"}
    words, eps = json.dumps(attack, sort_keys=True), number(threat.get("eps"))
    primary = "cosine" if mapping(content.get("primary")).get("measure") == "cosine" else "success"
    return RunScores(protocol, values, clusters, words, eps, primary, has_fit_rows(rows), run_settings(manifest))


def untrusted_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file that may come from others. Raises ValueError or OSError."""
    try:
        return [*csv.DictReader(io.StringIO(text(path)))]
    except csv.Error as error:
        raise ValueError(f"{path.name} is not a CSV file: {error}") from None


def _picture(row: Mapping[str, str], pixels: Mapping[str, str]) -> PictureKey:
    name = unescaped_text(row.get("picture") or "")
    return name, pixels.get(name, "")


def _with_order(node: Any, key: str = "") -> Any:
    """A part of a configuration in which equality also compares the order of stages."""
    if not isinstance(node, dict):
        return node
    items = [(name, _with_order(value, name)) for name, value in node.items()]
    return items if key == "stages" else dict(items)


def _has_share(node: Any, key: str = "") -> bool:
    """Whether a size in a part of a configuration is a share of the side of the encoder's input, so a fraction."""
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else ((key, value) for value in node)
        return any(_has_share(value, name) for name, value in items)
    return key in ("size", "then_size") and isinstance(node, float)


def compare_pairs(runs: Mapping[str, RunScores]) -> tuple[list[RunPair], list[tuple[str, str, str]]]:
    """All pairs of runs by name; and the pairs that cannot be compared, with the reason and what to do. Tests are
    simultaneous over the pairs of a bank and measure whose runs have the same threat, and over those of different
    threats. Raises ValueError for too many runs."""
    if math.comb(len(runs), 2) > MAX_PAIRS:
        raise ValueError(f"`RUN`: {len(runs)} runs make more than {MAX_PAIRS} pairs; compare fewer at a time")
    trials: list[Trial] = []
    refusals: list[tuple[str, str, str]] = []
    for first, second in itertools.combinations(runs, 2):
        result = _differences(runs[first], runs[second], (first, second))
        if isinstance(result, str):
            refusals.append((first, second, result))
        else:
            trials += result
    tables: dict[tuple[object, ...], list[int]] = {}
    for i, (pair, *_) in enumerate(trials):
        threats = {(*run.attack, run.eps) for run in (runs[pair.first], runs[pair.second])}
        tables.setdefault((pair.bank, pair.measure, *(threats if len(threats) == 1 else ())), []).append(i)
    pairs = [trial[0] for trial in trials]
    for table in tables.values():
        fit = any(runs[pairs[i].first].fit or runs[pairs[i].second].fit for i in table)
        minimum = fewest_clusters(len(table)) * (1 + fit)
        few = any(pairs[i].clusters < minimum for i in table)
        for i in table:
            pair, first_units, second_units = trials[i]
            test, spread = sign_flips(second_units, first_units, len(table)), second_units - first_units
            pairs[i] = replace(pair, difference=test.difference, p=test.p)
            if few or fit:
                ends = range_interval(test.difference.mean, spread)
                pairs[i] = replace(pair, difference=ends, clusters_needed=minimum)
    return pairs, refusals


def _differences(first: RunScores, second: RunScores, names: tuple[str, str]) -> list[Trial] | str:
    """The pairs in every bank and measure that both have, or the reason why there are none."""
    unequal = [key for key in first.protocol if first.protocol[key] != second.protocol[key]]
    one_key = len(differing_settings([first.settings, second.settings])) == 1
    views, other_views = (run.protocol["bank"][3] for run in (first, second))
    if unequal and not (one_key and "aim" not in unequal and views == other_views):
        return "; ".join(f"another {key}: {_advice(key, first, second)}" for key in unequal)
    pairs = []
    for (bank, measure), column in first.values.items():
        other = second.values.get((bank, measure), {})
        shared = [picture for picture in column if picture in other]
        if len(shared) < 2:
            continue
        numbers = ([scores[key] for key in shared] for scores in (column, other))
        values, other_values = (torch.tensor(row, dtype=torch.float64) for row in numbers)
        clusters = [first.clusters[picture] for picture in shared]
        values, other_values = by_cluster(values, clusters), by_cluster(other_values, clusters)
        pair = RunPair(*names, bank, measure, len(shared), len(values), NO_DIFFERENCE)
        pairs.append((pair, values, other_values))
    return pairs or "fewer than two pictures in common: run both with the same data and data.count"


def _advice(key: str, first: RunScores, second: RunScores) -> str:
    value, other = first.protocol[key], second.protocol[key]
    if key == "bank" and value[3] != other[3]:
        return f"encoders of {value[3]} and {other[3]} pixels see other views; give the sizes in transforms in pixels"
    if key == "bank":
        names = ("views", "transforms", "printer")
        parts = [f"the same {names[i]}" for i in range(3) if value[i] != other[i]]
        if (views := count(value[0].get("views"))) is not None and views != other[0].get("views"):
            parts[0] = f"evaluate.views={views}"
        return f"run both with {' and '.join(parts)}"
    if key == "seed" and count(value) is not None:
        return f"run both with seed={count(value)}"
    return "run both with the same " + {"seed": "seed", "gallery": "data", "aim": "objective"}[key]


def _number(cell: str | None) -> float | None:
    with suppress(ValueError):
        return number(float(cell or "nan"))
    return None
