"""The numbers of metrics.json computed anew from the other files of a run, with numpy and scipy, after
docs/measures.md and docs/intervals.md. Nothing of the package is used."""

import csv
import json
from collections import Counter
from fractions import Fraction
from itertools import count, product

import numpy as np
import scipy.stats
from PIL import Image

LEVEL = 0.05
Z = scipy.stats.norm.ppf(0.975)
MEANS = ("cosine", "worst_cosine", "shift", "cosine_p10", "mrr", "goal_cosine")
SHARES = ("recall_at_1", "recall_at_5", "recall_at_10", "success", "success_survived", "knn", "no_answer")
SHARES += ("fooled_accepted", "flagged")
SPANS = {"shift": (-2, 2)} | dict.fromkeys(("cosine", "worst_cosine", "cosine_p10", "goal_cosine"), (-1, 1))
MEDIANS = ("median_rank", "goal_rank", "distance", "score")
BASELINES = ("noise", "no_eot")
#: The most clusters whose signs are all tried, and the random choices of signs for more.
EXACT, FLIPS = 16, 65_535
SUBSETS = np.random.default_rng(1)


# Statistics of (C,) values, one for each cluster


def value(mean, low, high, kind="interval"):
    return {"mean": mean, "low": min(low, mean), "high": max(high, mean), "kind": kind}


def value_range(units):
    return value(units.mean(), units.min(), units.max(), "range")


def mean(units, low=0.0, high=1.0, weights=None):
    """Each end is the mean against which a gambler, who bets that values are larger (or smaller), one by one and in
    about 64 orders, has won 40 times the stake: Waudby-Smith & Ramdas (2023)."""
    units = (units - low) / (high - low)
    weights = np.ones(len(units)) if weights is None else weights
    lowest, highest = end_of(units, weights), 1 - end_of(1 - units, weights)
    return value(*(low + (high - low) * end for end in (np.average(units, weights=weights), lowest, highest)))


def end_of(units, weights):
    units, n = units.clip(0, 1), len(units)
    bases = np.random.default_rng(0).permuted(np.tile(np.arange(n), (max(1, 64 // n), 1)), axis=1)
    orders = np.array([np.roll(base, -shift) for base in bases for shift in range(n)])

    def excess(m):
        return capital(units[orders], weights[orders], m).mean() - 40

    return scipy.optimize.brentq(excess, 1e-9, 1, xtol=1e-12) if excess(1e-9) > 0 else 0.0


def capital(values, weights, m):
    """What a stake of 1 becomes in each order, (O,) from (O,n) values. Before the first value the mean is m, with the
    variance of hits at that rate."""
    stake, n, total, squares, count = 1.0, values.shape[1], m, m * (1 - m), 1.0
    for place, (x, weight) in enumerate(zip(values.T, weights.T, strict=True), 1):
        bet = np.minimum(np.sqrt(2 * np.log(40) / np.maximum(squares / place, 1e-12) / n), 0.97 / m)
        stake = stake * (1 + bet * weight * (x - m))
        total, count = total + weight * x, count + weight
        squares = squares + (weight * (x - total / count)) ** 2
    return stake


def share(shares, trials, weights=None):
    """Of a single cluster over its views."""
    if len(shares) > 1:
        return mean(shares, weights=weights)
    hits = round(shares[0] * trials[0])
    return mean(np.r_[np.ones(int(hits)), np.zeros(int(trials[0] - hits))])


def middle(units):
    """The lower median, between order statistics that a sign test would not refuse."""
    rising, n = np.sort(units), len(units)
    cut = next(k for k in range(n) if scipy.stats.binom.cdf(k, n, 0.5) > 0.025)
    kind = "interval" if cut else "range"
    cut = max(0, cut - 1)
    return value(rising[(n - 1) // 2], rising[cut], rising[n - 1 - cut], kind)


def flips(first, other, tests=1):
    """The difference and its p value: of every choice of signs; of many clusters random ones, other than those of the
    package. The interval holds the centres that the signs of the rest do not refuse."""
    differences, n = first - other, len(first)
    means = subset_means(differences)
    p = 2 * min(not_above(means), not_above(-means))
    rank = int(np.ceil(0.025 * (len(means) + 1) / tests)) - 2
    result = value_range(differences) if rank < 0 else value(differences.mean(), means[rank], means[-1 - rank])
    return {"difference": result, "p": None if rank < 0 else min(1.0, tests * p), "needed": fewest_clusters(tests, n)}


def subset_means(differences):
    n = len(differences)
    chosen = np.array([*product((0, 1), repeat=n)]) if n <= EXACT else SUBSETS.integers(0, 2, (FLIPS + 1, n))
    chosen = chosen[chosen.any(1)]
    return np.sort(np.round(chosen @ differences / chosen.sum(1), 15))


def not_above(means):
    return (1 + (means <= 0).sum()) / (len(means) + 1)


def fewest_clusters(tests, clusters):
    """The fewest clusters with which the least p value can be below the level; None where there are enough."""
    fewest = next(n for n in count(1) if tests * 2.0 ** (1 - n) < LEVEL)
    return None if clusters >= fewest else fewest


# Rows of CSV files


def rows(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def select(table, **filters):
    matching = [row for row in table if all(row[key] == text for key, text in filters.items())]
    assert matching, filters
    return matching


def column(table, name):
    values = [row[name] for row in table]
    return None if "" in values else np.array([float(text) for text in values])


def values_in(table, name):
    """The values of a column in the order of the file."""
    return list(dict.fromkeys(row[name] for row in table))


def by_cluster(table, name, average=np.mean):
    """(C,) from (R,) rows: of each cluster the mean over its pictures of the mean over their rows."""
    clusters = {}
    for row in table:
        clusters.setdefault(row["cluster"], {}).setdefault(row["picture"], []).append(float(row[name]))
    return np.array([average([np.mean(entry) for entry in pictures.values()]) for pictures in clusters.values()])


def trials(table, views=None):
    """The views of each cluster: the sum of a column, or the number of rows."""
    totals = Counter()
    for row in table:
        totals[row["cluster"]] += float(row[views]) if views else 1
    return np.array([*totals.values()])


def lower_median(values):
    return np.sort(values)[(len(values) - 1) // 2]


# metrics.json


def recompute(folder):
    """The content of metrics.json as far as it follows from the other files of a run directory."""
    table, sections = rows(folder, "per_image"), (response, left_out, deployment, explanations, drift, detection)
    tables = {section.__name__: rows(folder, section.__name__) for section in sections}
    clusters = {row["picture"]: row["cluster"] for row in table}
    weights = {row["picture"]: float(row["weight"]) for row in table if "weight" in row}
    for row in [row for entry in tables.values() for row in entry]:
        row["cluster"] = clusters[row["picture"]]
    primary = json.loads((folder / "manifest.json").read_text())["primary"]["measure"]
    content = from_rows(table, primary)
    for arm, cell in content["arms"].items():
        cell |= {"budget_used": budget_used(folder, arm, values_in(table, "picture")), "step": step(table, arm)}
    return content | {
        "queries": [*clusters],
        "clusters": [*clusters.values()],
        "weights": [*weights.values()],
        "identities": len({row["identity"] for row in table}),
        "bank": {"views": int(table[0]["views"])},
        **{section.__name__: section(tables[section.__name__]) for section in sections},
    }


def from_rows(table, measure):
    """The tables and comparisons of per_image.csv, the primary one in `measure`."""
    arms = cells(table)
    primary, rest = comparisons(table, measure)
    wide = {"arms": arms["wide"], "bank": {"views": int(table[-1]["views"])}} if "wide" in arms else None
    return {"arms": arms["same"], "wide": wide, "primary": primary, "comparisons": rest}


def cells(table):
    """By bank and arm, the measures of per_image.csv."""
    return {
        bank: {arm: arm_cell(select(table, bank=bank, arm=arm)) for arm in values_in(table, "arm")}
        for bank in values_in(table, "bank")
    }


def arm_cell(table):
    cell = {}
    for name in (*MEANS, *SHARES, *MEDIANS, *(name for name in table[0] if name.startswith("tar_"))):
        views, mine = "views", table
        if name == "success_survived":
            views, mine = "survived", [row for row in table if row["survived"] != "0"]
        if not mine or column(mine, name) is None:
            cell[name] = None
        elif name in MEDIANS:
            cell[name] = middle(by_cluster(mine, name, lower_median))
        else:
            units, weights = by_cluster(mine, name), by_cluster(mine, "weight") if "weight" in mine[0] else None
            if name in MEANS:
                cell[name] = mean(units, *SPANS.get(name, (0, 1)), weights)
            else:
                cell[name] = share(units, trials(mine, views), weights)
    rates = {name.removeprefix("tar_"): cell.pop(name) for name in [*cell] if name.startswith("tar_")}
    return cell | {"tar": rates or None}


def step(table, arm):
    steps = column(select(table, bank="same", arm=arm), "step")
    return None if steps is None else {"median": lower_median(steps), "least": steps.min(), "most": steps.max()}


def budget_used(folder, arm, pictures):
    """The largest change of a saved picture, as a share of eps, in an L-inf ball."""
    eps = json.loads((folder / "manifest.json").read_text())["config"]["perturbation"]["eps"]
    files = ([folder / "pictures" / entry / name for entry in (arm, "clean")] for name in pictures)
    pairs = ([np.asarray(Image.open(path), float) for path in pair] for pair in files)
    return max(np.abs(attacked - clean).max() / 255 for attacked, clean in pairs) / float(Fraction(eps))


def comparisons(table, measure):
    keys = product(values_in(table, "bank"), values_in(table, "arm"))
    arms = {(bank, arm): select(table, bank=bank, arm=arm) for bank, arm in keys}
    better = 1 if measure == "success" else -1
    eot = by_cluster(arms["same", "eot"], measure)
    leads = {arm: better * (eot - by_cluster(arms["same", arm], measure)) for arm in BASELINES}
    against = max(("no_eot", "noise"), key=lambda arm: (not_above(subset_means(leads[arm])), -leads[arm].mean()))
    head = {"test": "sign flips", "arm": "eot"}
    primary = head | {"measure": measure, "against": against, "bank": "same", "clusters": len(eot)}
    primary |= flips(eot, by_cluster(arms["same", against], measure))
    others = sorted((arm for arm in values_in(table, "arm") if arm != "eot"), key=lambda arm: arm != "one_view")
    keys = [*product(values_in(table, "bank"), others, ("cosine", "success"))]
    keys.remove(("same", against, measure))
    rest = [
        head
        | {"measure": name, "other": other, "bank": bank}
        | flips(by_cluster(arms[bank, "eot"], name), by_cluster(arms[bank, other], name), len(keys))
        for bank, other, name in keys
    ]
    return primary, rest


def section(table):
    """A cell of a section: both measures."""
    success, cosine = (by_cluster(table, name) for name in ("success", "cosine"))
    return {"success": share(success, trials(table)), "cosine": mean(cosine, -1)}


def minus(first, other, tests):
    """The difference in success, one of so many."""
    return flips(by_cluster(first, "success"), by_cluster(other, "success"), tests)


def by_measure(cells):
    """The lists of both measures of several cells."""
    cells = [*cells]
    return {name: [cell[name] for cell in cells] for name in ("success", "cosine")}


def sizes(table):
    return {"pictures": len(values_in(table, "picture")), "clusters": len(values_in(table, "cluster"))}


def floats(table, name):
    return [float(text) for text in values_in(table, name)]


def response(table):
    kinds = {kind: [row for row in table if row["kind"] == kind] for kind in ("map", "curve")}
    return sizes(table) | {
        "views": len({row["view"] for row in table}),
        "maps": [a_map(select(kinds["map"], number=number)) for number in values_in(kinds["map"], "number")],
        "curves": [a_curve(select(kinds["curve"], number=number)) for number in values_in(kinds["curve"], "number")],
    }


def a_map(table):
    xs, ys = values_in(table, "x_value"), values_in(table, "y_value")
    names = values_in(table, "arm")
    cells = {(arm, x, y): select(table, arm=arm, x_value=x, y_value=y) for arm, x, y in product(names, xs, ys)}
    grids = {arm: [by_measure(section(cells[arm, x, y]) for x in xs) for y in ys] for arm in names}
    arms = {arm: by_measure(grid) for arm, grid in grids.items()}
    content = {"x": {"values": floats(table, "x_value")}, "y": {"values": floats(table, "y_value")}, "arms": arms}
    pairs = [[by_cluster(cells[arm, x, y], "success") for arm in ("eot", "no_eot")] for y, x in product(ys, xs)]
    tests = [flips(*pair, len(pairs)) for pair in pairs]
    p = None if tests[0]["p"] is None else np.reshape([test["p"] for test in tests], (len(ys), len(xs))).tolist()
    content |= {"needed": tests[0]["needed"], "p": p}
    return content


def a_curve(table):
    xs = values_in(table, "x_value")
    arms = {arm: [section(select(table, arm=arm, x_value=x)) for x in xs] for arm in values_in(table, "arm")}
    return {"x": {"values": floats(table, "x_value")}, "arms": {arm: by_measure(arms[arm]) for arm in arms}}


def left_out(table):
    lines = []
    for stage in values_in(table, "without"):
        cells = []
        for test in values_in(table, "test"):
            arm_rows, full = (select(table, without=name, test=test) for name in (stage, "nothing"))
            count = (len(values_in(table, "without")) - 1) * len(values_in(table, "test"))
            difference = {"difference": None} if stage == "nothing" else minus(arm_rows, full, count)
            cells.append(section(arm_rows) | {"test": test} | difference)
        lines.append({"without": stage, "cells": cells})
    return sizes(table) | {"rows": lines}


def deployment(table):
    cells, pairs = [], dict.fromkeys((row["codec"], row["resampler"]) for row in table)
    for codec, resampler in pairs:
        mine = select(table, codec=codec, resampler=resampler)
        arms = {arm: select(mine, arm=arm) for arm in values_in(mine, "arm")}
        cell = {"codec": codec, "resampler": resampler} | minus(arms["eot"], arms["no_eot"], len(pairs))
        cells.append(cell | {"arms": {arm: section(arm_rows) for arm, arm_rows in arms.items()}})
    return sizes(table) | {"cells": cells}


def detection(table):
    """Each picture is flagged below the lowest clean cosines of the other clusters, one in a hundred."""
    clean, limits, bounds, counts = select(table, arm="clean"), {}, [], []
    for cluster in values_in(table, "cluster"):
        rest = sorted(float(row["cosine"]) for row in clean if row["cluster"] != cluster)
        k = max(1, (len(rest) + 1) // 100)
        limits[cluster] = rest[k - 1]
        bounds, counts = [*bounds, k / (len(rest) + 1)], [*counts, len(rest)]
    arms = {}
    for arm in values_in(table, "arm"):
        arm_rows = [row | {"below": float(row["cosine"]) < limits[row["cluster"]]} for row in select(table, arm=arm)]
        assert [str(int(row["below"])) for row in arm_rows] == [row["flagged"] for row in arm_rows]
        flag_rate = share(by_cluster(arm_rows, "below"), trials(arm_rows))
        arms[arm] = {"flagged": flag_rate, "lowest": min(float(row["cosine"]) for row in arm_rows)}
    ends = [min(limits.values()), max(limits.values())]
    return sizes(table) | {"calibration": min(counts), "bound": max(bounds), "thresholds": ends, "arms": arms}


def explanations(table):
    clean, arms = select(table, arm="clean"), values_in(table, "arm")
    means = {name: by_cluster(clean, name).mean() for name in ("coverage", "view_coverage", "effective_coverage")}
    return means | {
        "pictures": values_in(table, "picture"),
        "clusters": sizes(table)["clusters"],
        "likeness": {arm: mean(by_cluster(select(table, arm=arm), "likeness"), -1) for arm in arms},
        "dead": 1 - means["coverage"],
    }


def drift(table):
    layers = values_in(table, "layer")
    arms, flip = values_in(table, "arm"), None
    cells = {(name, arm): by_cluster(select(table, layer=name, arm=arm), "cosine") for name in layers for arm in arms}
    lines = [{"layer": layer} | {arm: mean(cells[layer, arm], -1) for arm in arms} for layer in layers]
    for layer in reversed(layers):
        arm_rows, noise = (1 - cells[layer, arm] for arm in ("eot", "noise"))
        end = (1 - cells[layers[-1], "eot"]).mean()
        large = arm_rows.mean() > end / 2 and arm_rows.mean() >= 2 * noise.mean()
        clear = flips(arm_rows, noise)["difference"]["low"] > 0
        flip = layer if end >= 0.1 and large and clear else flip
    return {"layers": lines, "flips": flip}


def leaves(node, filters=()):
    """The values of nested dictionaries and lists by their places."""
    if not isinstance(node, dict | list):
        return {filters: node}
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    return {place: value for key, entry in entries for place, value in leaves(entry, (*filters, key)).items()}


def read(folder):
    return json.loads((folder / "metrics.json").read_text())
