"""A whole run that never was: everything that metrics.json and its neighbours can say, for the tests of the pages."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image

ARMS = ("clean", "noise", "no_eot", "one_view", "eot")
#: How strong each arm is.
FORCE = dict(zip(ARMS, (0.02, 0.03, 0.45, 0.6, 0.93), strict=True))
EVIL = "<script>alert(1)</script>.png"
QUERIES = ["astronaut-0-0.png", EVIL, "a & b 'c' \"d\".png", "$x$_${.png", "chelsea-1-2.png"]


class Line(NamedTuple):
    arm: str
    attack: str
    objective: float
    held_out: float | None
    evals: int


def interval(mean, half=0.04, floor=-1.0, top=1.0):
    return {"mean": mean, "low": max(floor, mean - half), "high": min(top, mean + half)}


def share(mean, half=0.04):
    return interval(min(1.0, max(0.0, mean)), half, 0.0)


def judged(fade=1.0):
    rows = {}
    for arm in ARMS:
        force = FORCE[arm] * fade
        rows[arm] = {
            "cosine": interval(0.95 - force),
            "worst_cosine": interval(0.97 - 0.9 * force),
            "shift": interval(-force),
            "cosine_p10": interval(0.85 - force),
            **{f"recall_at_{k}": share(1 - force + 0.01 * k) for k in (1, 5, 10)},
            "mrr": share(1 - 0.9 * force),
            "median_rank": interval(1 + 40 * force, 3, 1, 268),
            "success": share(force),
            "knn": share(1 - force) if arm != "noise" else None,
            "goal_cosine": None,
            "tar": {far: share(1 - force - float(far)) for far in ("0.001", "0.01")},
            "budget_used": 0.0 if arm == "clean" else 1.0,
        }
    return rows


def over(x, y, width=30.0, height=0.5):
    return math.exp(-((x / width) ** 2) - ((y - 1) / height) ** 2)


def pair(arm, good):
    return {"success": share(FORCE[arm] * good), "cosine": interval(0.95 - FORCE[arm] * good)}


def response():
    x = {
        "name": "affine angle (deg)",
        "values": [-60.0, -40.0, -20.0, 0.0, 20.0, 40.0, 60.0],
        "trained": [-20.0, 20.0],
    }
    y = {"name": "affine scale (x)", "values": [0.5, 0.75, 1.0, 1.3, 1.7], "trained": [0.75, 1.3]}
    cells = {
        arm: [[pair(arm, over(a, b)) for a in x["values"]] for b in y["values"]] for arm in ARMS if arm != "noise"
    }
    arms = {
        arm: {m: [[c[m] for c in row] for row in rows] for m in ("success", "cosine")} for arm, rows in cells.items()
    }
    grid = {
        "x": x,
        "y": y,
        "arms": arms,
        "p_holm": [[0.2 if b > 1.5 else 0.0004 for _ in x["values"]] for b in y["values"]],
    }
    grid |= {"worst": {"x": -60.0, "y": 0.5, **pair("eot", 0.01)}, "best": {"x": 0.0, "y": 1.0, **pair("eot", 1)}}
    line = {arm: [pair(arm, over(a, 1)) for a in x["values"]] for arm in ARMS}
    curve = {
        "x": x,
        "arms": {arm: {m: [c[m] for c in row] for m in ("success", "cosine")} for arm, row in line.items()},
    }
    return {"pictures": 5, "views": 32, "maps": [grid], "curves": [curve]}


def left_out():
    stages = ["affine", "perspective", "brightness", "contrast", "downscale"]
    tests = ["all", *stages]

    def cells(without):
        loss = {
            test: 0.6 if test == without else 0.2 if test == "all" and without != "nothing" else 0.0 for test in tests
        }
        return [{"test": test, **pair("eot", 1 - loss[test])} for test in tests]

    rows = [{"without": stage, "cells": cells(stage)} for stage in ("nothing", *stages)]
    return {"pictures": 4, "steps": 50, "stages": stages, "tests": tests, "rows": rows}


def deployment():
    codecs, resamplers = ("png", "jpeg 95", "jpeg 75", "jpeg 50", "webp 80"), ("none", "pillow", "opencv", "torch")
    fade = {codec: 1 - 0.15 * i for i, codec in enumerate(codecs)}
    cells = [
        {"codec": codec, "resampler": each, "arms": {arm: pair(arm, fade[codec] - 0.05 * j) for arm in ARMS}}
        for codec in codecs
        for j, each in enumerate(resamplers)
    ]
    return {"pictures": 5, "cells": cells, "missing": ["opencv is not installed"]}


def drift():
    layers = ["stem", *(f"stages.{i}" for i in range(9)), "output"]
    rows = [
        {"layer": name} | {arm: interval(1 - FORCE[arm] * i / 10) for arm in ARMS[1:]}
        for i, name in enumerate(layers)
    ]
    return {"views": 32, "layers": rows, "flips": "stages.5", "cost": {"forward": 640, "seconds": 3.0}}


def explanations():
    frequency = [round(i / 40, 4) for i in range(1, 21)]
    power = {arm: [FORCE[arm] * math.exp(-f * 12 * FORCE[arm]) for f in frequency] for arm in ARMS[1:]}
    arms = ("clean", "no_eot", "eot")
    orders = {
        order: {
            "deletion": {arm: interval(0.4 - step - 0.1 * FORCE[arm]) for arm in arms},
            "insertion": {arm: interval(0.6 + step - 0.3 * FORCE[arm]) for arm in arms},
        }
        for order, step in (("gradcam", 0.2), ("gradient", 0.1), ("random", 0.0))
    }
    return {
        "layer": "stages.7",
        "pictures": QUERIES[:2],
        "likeness": {arm: interval(1 - FORCE[arm]) for arm in arms},
        "order": "gradcam",
        **orders["gradcam"],
        "orders": orders,
        "coverage": 0.982,
        "view_coverage": 0.762,
        "effective_coverage": 0.871,
        "dead": 0.018,
        "spectrum": {"frequency": frequency, "arms": power},
        "missing": [],
        "cost": {"forward": 300, "backward": 40, "seconds": 2.0},
    }


def sanity():
    checks = [
        {
            "name": "lowers the loss",
            "verdict": "passed",
            "words": "20 steps of 4 views took the loss from 0.892 to 0.133",
        },
        {"name": "masking", "verdict": "failed", "words": "a surrogate's gradient is better than the encoder's own"},
    ]
    return {"failed": ["masking"], "checks": [check | {"figures": {}} for check in checks], "cost": {}}


def encoder():
    said = {"name": "pocket", "model": None, "weights": None, "sha256": "8d13b3" + 58 * "a", "fingerprint": 64 * "f"}
    return said | {"defence": [], "stochastic": False, "middle": [], "draws": []}


def content(**changes):
    """metrics.json of schema 2 with every section; `changes` replace some."""
    threat = {"objective": "away", "targeted": False, "attack": "single", "optimiser": "wiener", "norm": "linf"}
    threat |= {"eps": 16 / 255, "steps": 100, "views_per_step": 8, "risk": "mean", "shared": False, "patch": None}
    threat["transforms"] = "camera"
    coordinates = ["affine angle (deg)", "affine scale (x)", "brightness added (of full scale)"]
    bank = {"views": 512, "refine": 5, "draws": "scrambled Sobol, a stream of its own", "coordinates": coordinates}
    comparisons = [
        {
            "measure": measure,
            "arm": "eot",
            "other": other,
            "bank": bank_name,
            "difference": interval(0.4),
            "test": test,
        }
        | {"p": 0.0002, "p_holm": 0.0004 if bank_name == "same" else 0.081}
        for measure, test in (("success", "McNemar"), ("cosine", "Wilcoxon signed rank"))
        for other in ("no_eot", "one_view")
        for bank_name in ("same", "wide")
    ]
    found = {
        "schema": 2,
        "preset": "evaluate",
        "seed": 0,
        "encoder": encoder(),
        "threat": threat,
        "queries": list(QUERIES),
        "gallery": 268,
        "classes": None,
        "guessed": 0,
        "identities": 100,
        "bank": bank,
        "intervals": "95 %, bootstrap over pictures",
        "arms": judged(),
        "wide": {"factor": 1.5, "bank": {"views": 512}, "arms": judged(0.8)},
        "verification": {"thresholds": {"0.001": 0.71, "0.01": 0.55}, "impostors": 35000},
        "neighbours": 5,
        "comparisons": comparisons,
        "costs": {
            arm: {"forward": 4000 + i, "backward": 4000 * (i > 1), "seconds": 12.5 * i} for i, arm in enumerate(ARMS)
        },
        "cost": {"forward": 20010, "backward": 12000, "seconds": 125.0},
        "sanity": sanity(),
        "drift": drift(),
        "response": response(),
        "left_out": left_out(),
        "deployment": deployment(),
        "explanations": explanations(),
    }
    return found | changes


def manifest():
    return {
        "schema": 2,
        "preset": "evaluate",
        "overrides": ["config=evaluate", "data.path=my pictures", "data.count=5"],
        "seed": 0,
        "config": {"transforms": {"name": "camera"}},
        "device": "cpu",
        "threads": 2,
        "processes": 1,
        "encoder": encoder(),
        "engine": {"settings": ["engine=fixed", "engine.chunk=48"]},
        "git": "f862b5573975bd3722a13acaf4e25f588685d9b6",
        "python": "3.11.7",
        "platform": "Linux-6.18-x86_64",
        "versions": {"viewproof": "0.1.0", "torch": "2.15.0", "numpy": "2.4.6"},
    }


def trace():
    lines = []
    for arm in ("no_eot", "one_view", "eot"):
        for step in range(40):
            loss = 0.9 - FORCE[arm] * (1 - math.exp(-step / 10))
            lines.append(
                Line(arm, "wiener", loss + 0.03 * math.sin(step), loss if step % 5 == 4 else None, 40 * (step + 1))
            )
    return lines


def directory(out, names):
    """The PNG files of a run directory: a sheet, explanations, and the pictures before and after."""
    rng = np.random.default_rng(0)
    for arm, amount in (("clean", 0), ("eot", 16)):
        for name in names:
            base = np.linspace(40, 200, 96)[:, None, None] * np.ones((1, 128, 3))
            noise = np.random.default_rng(1).integers(-1, 2, base.shape) * amount
            write(out / "pictures" / arm / name, base + noise)
    write(out / "views.png", rng.integers(0, 255, (240, 420, 3)))
    write(out / "explanations.png", rng.integers(0, 255, (120, 400, 3)))
    write(out / "patch.png", rng.integers(0, 255, (32, 32, 3)))


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)
