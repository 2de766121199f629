"""All tables of metrics.json computed anew from the CSV files of a run, with numpy and scipy, after
docs/evaluation.md. Nothing of the package is used; the places of the bootstrap's 4000 samples are drawn as there."""

import csv
import json
from itertools import chain, product
from math import comb, sqrt

import numpy as np
import scipy.stats
import torch

Z = scipy.stats.norm.ppf(0.975)
MEANS = ("cosine", "worst_cosine", "shift", "cosine_p10", "mrr", "goal_cosine")
SHARES = ("recall_at_1", "recall_at_5", "recall_at_10", "success", "knn")
MEDIANS = ("median_rank", "goal_rank")


def rows(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def some(table, **where):
    matching = [row for row in table if all(row[key] == value for key, value in where.items())]
    assert matching, where
    return matching


def column(table, name):
    values = [row[name] for row in table]
    return None if "" in values else np.array([float(value) for value in values])


def pictures(table, name):
    """Long rows as (N,V), in the order of the file."""
    order = list(dict.fromkeys(row["picture"] for row in table))
    return np.array([[float(row[name]) for row in table if row["picture"] == picture] for picture in order])


def mean(units):
    """Expanded BCa bootstrap (Efron 1987, Hesterberg 2015), bias and acceleration a sixth of the mean's skewness."""
    n = len(units)
    if n == 1 or np.ptp(units) == 0:
        return [units.mean()] * 3
    places = torch.randint(n, (4000, n), generator=torch.Generator().manual_seed(0)).numpy()
    drawn = units[places].mean(1)
    skew = scipy.stats.skew(units) / (6 * sqrt(n))
    wide = sqrt(n / (n - 1)) * scipy.stats.t.ppf(0.975, n - 1)
    levels = [scipy.stats.norm.cdf(skew + (skew + z) / (1 - skew * (skew + z))) for z in (-wide, wide)]
    low, high = np.quantile(drawn, levels)
    return [units.mean(), min(low, units.mean()), max(high, units.mean())]


def share(shares, views):
    """Wilson's interval for the effective number of trials (Kish; Korn & Graubard), with a quarter
    of a picture of hits and one of misses."""
    n = len(shares)
    if n == 1:
        worth = views
    else:
        values, times = np.r_[shares, 0, 1], np.r_[np.ones(n), 0.25, 0.25]
        p = np.average(values, weights=times)
        spread = (times * (values - p) ** 2).sum() / (times.sum() - 1)
        worth = n * p * (1 - p) / spread * (Z / scipy.stats.t.ppf(0.975, n - 1)) ** 2
        worth = min(max(worth, n), n * views)
    p = shares.mean()
    middle = (p + Z**2 / (2 * worth)) / (1 + Z**2 / worth)
    half = Z * sqrt(p * (1 - p) / worth + Z**2 / (4 * worth**2)) / (1 + Z**2 / worth)
    return [p, max(0, min(p, middle - half)), min(1, max(p, middle + half))]


def middle(values):
    """The lower median, between order statistics that a sign test would not refuse."""
    rising, n = np.sort(values), len(values)
    cut = next(k for k in range(n) if scipy.stats.binom.cdf(k, n, 0.5) > 0.025)  # the sign test refuses these
    cut = max(0, cut - 1) if scipy.stats.binom.cdf(0, n, 0.5) <= 0.025 else 0
    return [rising[(n - 1) // 2], rising[cut], rising[n - 1 - cut]]


def flips(differences):
    """Every choice of signs."""
    n = len(differences)
    assert n <= 12
    sums = np.array([np.dot(signs, differences) for signs in product((-1, 1), repeat=n)])
    slack = 1e-12 * np.abs(differences).sum()
    return np.mean(np.abs(sums) >= abs(differences.sum()) - slack)


def mcnemar(one, other):
    first, second = int((one & ~other).sum()), int((other & ~one).sum())
    n = first + second
    return min(1.0, 2 * sum(comb(n, k) for k in range(min(first, second) + 1)) / 2**n)


def holm(p):
    p, corrected = np.asarray(p), np.zeros(len(p))
    for i, each in enumerate(p):
        corrected[i] = max(min(1, (p >= lower).sum() * lower) for lower in p[p <= each])
    return corrected


def section(table):
    """A cell of a section: both measures."""
    hits, cosine = pictures(table, "success"), pictures(table, "cosine")
    units = cosine.mean(1) if len(cosine) > 1 else cosine[0]
    return {"success": share(hits.mean(1), hits.shape[1]), "cosine": mean(units)}


def cells(content, folder):
    """Every number: its place in metrics.json, the value there, and the computed value."""
    yield from arms_cells(content, rows(folder, "per_image"))
    yield from comparison_cells(content, rows(folder, "per_image"))
    if content["response"]:
        yield from response_cells(content["response"], rows(folder, "response"))
    if content["left_out"]:
        table = rows(folder, "left_out")
        for without in content["left_out"]["rows"]:
            for cell in without["cells"]:
                where = {"without": without["without"], "test": cell["test"]}
                yield from pairs(("left_out", *where.values()), cell, section(some(table, **where)))
    if content["deployment"]:
        table = rows(folder, "deployment")
        for cell in content["deployment"]["cells"]:
            for arm, each in cell["arms"].items():
                where = {"codec": cell["codec"], "resampler": cell["resampler"], "arm": arm}
                yield from pairs(("deployment", *where.values()), each, section(some(table, **where)))
    if content["explanations"]:
        yield from explanation_cells(content["explanations"], rows(folder, "explanations"), rows(folder, "spectrum"))


def pairs(where, cell, computed):
    for measure, values in computed.items():
        for part, value in zip(("mean", "low", "high"), values, strict=True):
            yield (*where, measure, part), cell[measure][part], value


def arms_cells(content, table):
    views = int(table[0]["views"])
    for bank, arms in (("same", content["arms"]), ("wide", (content["wide"] or {}).get("arms", {}))):
        for arm, cell in arms.items():
            mine = some(table, bank=bank, arm=arm)
            for names, how in ((MEANS, mean), (SHARES, lambda v: share(v, views)), (MEDIANS, middle)):
                for name in names:
                    values = column(mine, name)
                    if values is None:
                        assert cell[name] is None
                    else:
                        yield from pairs((bank, arm), cell, {name: how(values)})
            for far, each in (cell["tar"] or {}).items():
                yield from pairs((bank, arm, "tar"), {far: each}, {far: share(column(mine, f"tar_{far}"), views)})


def comparison_cells(content, table):
    computed, p = [], []
    for row in content["comparisons"]:
        one, other = (
            column(some(table, bank=row["bank"], arm=arm), row["measure"]) for arm in (row["arm"], row["other"])
        )
        p.append(flips(one - other) if row["measure"] == "cosine" else mcnemar(one > 0.5, other > 0.5))
        computed.append(DIFFERENCE[row["measure"]](one, other, int(table[0]["views"])))
    for row, values, each, corrected in zip(content["comparisons"], computed, p, holm(p), strict=True):
        where = ("comparisons", row["bank"], row["other"], row["measure"])
        yield from pairs(where, row, {"difference": values})
        yield (*where, "p"), row["p"], each
        yield (*where, "p_holm"), row["p_holm"], corrected


def apart(one, other, views):
    """Two shares of the same pictures, from their own intervals and their correlation (Newcombe 1998, method 10)."""
    (p, low, high), (q, below, above) = share(one, views), share(other, views)
    alike = scipy.stats.pearsonr(one, other).statistic if np.ptp(one) and np.ptp(other) else 0
    alike = min(alike, 0) if len(one) < 4 else alike
    return [
        p - q,
        p - q - sqrt((p - low) ** 2 - 2 * alike * (p - low) * (above - q) + (above - q) ** 2),
        p - q + sqrt((high - p) ** 2 - 2 * alike * (high - p) * (q - below) + (q - below) ** 2),
    ]


DIFFERENCE = {"cosine": lambda one, other, views: mean(one - other), "success": apart}


def response_cells(response, table):
    for number, each in enumerate(response["maps"]):
        p, ys = [], each["y"]["values"]
        for down, across in product(range(len(ys)), range(len(each["x"]["values"]))):
            place = {"kind": "map", "number": str(number), "x_value": repr(each["x"]["values"][across])}
            place |= {"y_value": repr(ys[down])}
            for arm, cell in each["arms"].items():
                picked = {key: grid[down][across] for key, grid in cell.items()}
                yield from pairs(("map", arm, down, across), picked, section(some(table, arm=arm, **place)))
            one, other = (pictures(some(table, arm=arm, **place), "cosine").mean(1) for arm in ("eot", "no_eot"))
            p.append(flips(one - other))
        for i, (there, mine) in enumerate(zip(chain(*each["p_holm"]), holm(p), strict=True)):
            yield ("map", "p_holm", i), there, mine
        means = {
            (x, y): each["arms"]["eot"]["cosine"][j][i]["mean"]
            for i, x in enumerate(each["x"]["values"])
            for j, y in enumerate(ys)
        }
        for name, pick in (("worst", max), ("best", min)):
            yield ("map", name), each[name]["cosine"]["mean"], pick(means.values())
            yield ("map", name, "place"), means[each[name]["x"], each[name]["y"]], pick(means.values())
    for number, each in enumerate(response["curves"]):
        for at, x in enumerate(each["x"]["values"]):
            for arm, cell in each["arms"].items():
                mine = some(table, kind="curve", number=str(number), arm=arm, x_value=repr(x))
                yield from pairs(("curve", arm, at), {key: line[at] for key, line in cell.items()}, section(mine))


def explanation_cells(content, table, spectrum):
    for arm, order in product(content["likeness"], content["orders"]):
        mine, chance = some(table, arm=arm, order=order), some(table, arm=arm, order="random")
        likeness = mean(column(mine, "likeness"))
        yield from pairs(("explanations", arm), {"likeness": content["likeness"][arm]}, {"likeness": likeness})
        for measure in ("deletion", "insertion"):
            values = column(mine, measure)
            place = ("explanations", arm, order)
            yield from pairs(place, {measure: content["orders"][order][measure][arm]}, {measure: mean(values)})
            if order == content["order"]:
                yield from pairs(place, {measure: content[measure][arm]}, {measure: mean(values)})
            if order != "random":
                beyond = content["beyond_random"][order][measure][arm]
                yield from pairs(
                    (*place, "beyond"), {measure: beyond}, {measure: mean(values - column(chance, measure))}
                )
    mine = some(table, arm="clean", order="random")
    for name in ("coverage", "view_coverage", "effective_coverage"):
        yield ("explanations", name), content[name], column(mine, name).mean()
    yield ("explanations", "dead"), content["dead"], 1 - column(mine, "coverage").mean()
    for arm, shares in content["spectrum"]["arms"].items():
        power = pictures(some(spectrum, arm=arm), "power")
        for i, values in enumerate(zip(shares, (power / power.sum(1, keepdims=True)).mean(0), strict=True)):
            yield ("spectrum", arm, i), *values


def read(folder):
    return json.loads((folder / "metrics.json").read_text())
