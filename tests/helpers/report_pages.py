"""A synthetic run with every section of metrics.json and manifest.json, for the tests of the pages."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image

from attacks.data.images import file_names
from attacks.evaluation.rare.failure import PictureFailure, failure_summary
from attacks.report.page import page
from attacks.runtime.files import write_text

ARMS = ("clean", "noise", "no_eot", "one_view", "eot")
#: The strength of each arm.
FORCE = dict(zip(ARMS, (0.02, 0.03, 0.45, 0.6, 0.93), strict=True))
EVIL = "<script>alert(1)</script>.png"
QUERIES = ["astronaut-0-0.png", EVIL, "a & b 'c' \"d\".png", "$x$_${.png", "chelsea-1-2.png"]
QUERIES += [f"tile-{i}.png" for i in range(10)]
#: Twelve photographs, three of which have two tiles.
CLUSTERS = [str(i % 12) for i in range(len(QUERIES))]


class Line(NamedTuple):
    arm: str
    attack: str
    objective: float
    held_out: float | None
    evals: int
    step: int


def interval(mean, half=0.04, floor=-1.0, top=1.0):
    return {"mean": mean, "low": max(floor, mean - half), "high": min(top, mean + half), "kind": "interval"}


def share(mean, half=0.04):
    return interval(min(1.0, max(0.0, mean)), half, 0.0)


def arm_values(fade=1.0):
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
            "success_survived": share(force - 0.01) if arm != "clean" else None,
            "knn": share(1 - force) if arm != "noise" else None,
            "goal_cosine": None,
            "tar": {far: share(1 - force - float(far)) for far in ("0.001", "0.01")},
            "budget_used": 0.0 if arm == "clean" else 1.0,
            "step": None if arm in ("clean", "noise") else {"median": 20, "least": 5, "most": 40},
        }
    return rows


def over(x, y, width=30.0, height=0.5):
    return math.exp(-((x / width) ** 2) - ((y - 1) / height) ** 2)


def pair(arm, good):
    return {"success": share(FORCE[arm] * good), "cosine": interval(0.95 - FORCE[arm] * good)}


def by_measure(cells):
    return {measure: [cell[measure] for cell in cells] for measure in ("success", "cosine")}


def response():
    x = {"name": "affine angle (deg)", "values": [20.0 * i for i in range(-3, 4)], "trained": [-20.0, 20.0]}
    y = {"name": "affine scale (x)", "values": [0.5, 0.75, 1.0, 1.3, 1.7], "trained": [0.75, 1.3]}
    grid = {
        "x": x,
        "y": y,
        "arms": {},
        "p": [[0.2 if b > 1.5 else 0.0004] * len(x["values"]) for b in y["values"]],
        "needed": None,
    }
    for arm in ("clean", "no_eot", "one_view", "eot"):
        rows = [by_measure([pair(arm, over(a, b)) for a in x["values"]]) for b in y["values"]]
        grid["arms"][arm] = by_measure(rows)
    curve = {"x": x, "arms": {arm: by_measure([pair(arm, over(a, 1)) for a in x["values"]]) for arm in ARMS}}
    return {"pictures": 15, "clusters": 12, "views": 32, "maps": [grid], "curves": [curve]}


def radii():
    median = {"mean": 3 / 255, "low": 2 / 255, "high": None, "kind": "interval"}
    curve = [{"eps": i / 255, "success": interval(i / 10)} for i in range(9)]
    passes = {"search": 832, "attack": 416, "runs": 3.0}
    head = {"pictures": 15, "clusters": 12, "eps": 8 / 255, "median": median, "beyond": 3}
    return head | {"held_out": interval(0.47), "curve": curve, "passes": passes}


def left_out():
    stages = ["affine", "perspective", "brightness", "contrast", "downscale"]
    tests = ["all", *stages]

    def loss(stage, test):
        return 0.6 if test == stage else 0.2 if test == "all" and stage != "nothing" else 0.0

    def cell(stage, test):
        difference = None if stage == "nothing" else interval(-0.93 * loss(stage, test))
        return {"test": test, **pair("eot", 1 - loss(stage, test)), "difference": difference, "needed": None}

    rows = [{"without": stage, "cells": [cell(stage, test) for test in tests]} for stage in ("nothing", *stages)]
    return {"pictures": 12, "clusters": 12, "steps": 50, "stages": stages, "tests": tests, "rows": rows}


def deployment():
    codecs = ("png", "jpeg 95", "jpeg 75", "jpeg 50", "webp 80")
    resamplers = ("none", "Pillow bilinear", "Pillow bicubic", "Pillow lanczos", "torch antialiased bilinear")
    fade = {codec: 1 - 0.15 * i for i, codec in enumerate(codecs)}
    cells = [
        {
            "codec": codec,
            "resampler": resampler,
            "arms": {arm: pair(arm, fade[codec] - 0.05 * j) for arm in ARMS},
            "difference": interval(0.48 * (fade[codec] - 0.05 * j), 0.1),
            "needed": None,
        }
        for codec in codecs
        for j, resampler in enumerate(resamplers)
    ]
    return {"pictures": 15, "clusters": 12, "cells": cells, "missing": ["opencv is not installed"]}


def detection():
    arms = {arm: {"flagged": share(FORCE[arm]), "lowest": 0.99 - FORCE[arm]} for arm in ARMS}
    head = {"pictures": 15, "clusters": 12, "pipeline": "given in Python: mine.<lambda>", "size": [96, 128]}
    return head | {"calibration": 13, "bound": 1 / 14, "thresholds": [0.971, 0.982], "arms": arms}


def failure():
    def failures(arm, *estimates):
        plain = (0.0, 0.0, 7.4e-5, 50_000)
        return [
            PictureFailure(*plain, *figures, method, name, name, arm, 110_000, {"affine angle (deg)": -19.5}).row()
            for name, *figures, method in estimates
        ]

    nothing = (QUERIES[1], 0.0, 0.0, 0.0, 0.0, "none found")
    rows = failures("clean", (QUERIES[0], 2.5e-6, 1.2e-6, 3.1e-6, 0.2, "importance"), nothing) + failures(
        "eot", nothing
    )
    return failure_summary(rows) | {"particles": 1000}


def drift():
    layers = ["stem", *(f"stages.{i}" for i in range(9)), "output"]
    rows = [
        {"layer": name} | {arm: interval(1 - FORCE[arm] * i / 10) for arm in ARMS[1:]}
        for i, name in enumerate(layers)
    ]
    return {"views": 32, "layers": rows, "flips": "stages.5", "cost": {"forward": 640, "seconds": 3.0}}


def explanations():
    likeness = {arm: interval(1 - FORCE[arm]) for arm in ("clean", "no_eot", "eot")}
    head = {"layer": "stages.7", "pictures": QUERIES[:12], "clusters": 12, "likeness": likeness, "missing": []}
    shares = {"coverage": 0.982, "view_coverage": 0.762, "effective_coverage": 0.871, "dead": 0.018}
    return head | shares | {"cost": {"forward": 300, "backward": 40, "seconds": 2.0}}


def sanity():
    checks = [
        ("lowers the loss", "passed", "20 steps took the loss from 0.892 to 0.133"),
        ("masking", "failed", "a surrogate's gradient is better than the encoder's own"),
        ("transfer", "skipped", "this attack uses no gradient"),
    ]
    rows = [{"name": name, "verdict": verdict, "words": words, "figures": {}} for name, verdict, words in checks]
    return {"failed": ["masking"], "checks": rows, "cost": {}}


def encoder():
    facts = {"name": "pocket", "model": None, "weights": None, "sha256": "8d13b3" + 58 * "a", "fingerprint": 64 * "f"}
    return facts | {"defence": [], "stochastic": False, "middle": [], "draws": []}


def primary():
    row = {"measure": "success", "arm": "eot", "against": "no_eot", "baselines": ["noise", "no_eot"], "bank": "same"}
    row |= {"difference": interval(0.48, 0.12), "test": "sign flips", "p": 0.0024, "needed": None}
    return row | {"clusters": len(set(CLUSTERS))}


def secondary():
    rows = []
    for name, other, measure in itertools.product(
        ("same", "wide"), ("one_view", "clean", "noise", "no_eot"), ("cosine", "success")
    ):
        if (name, other, measure) != ("same", "no_eot", "success"):
            difference = interval((FORCE["eot"] - FORCE[other]) * (1 if measure == "success" else -1), 0.1)
            row = {"measure": measure, "arm": "eot", "other": other, "bank": name, "difference": difference}
            p = {"p": 0.0006 if name == "same" else 0.081, "needed": None}
            rows.append(row | {"test": "sign flips"} | p)
    return rows


def shorten_values(node):
    """The same content of a run with three clusters: ranges for intervals, and no tests."""
    if isinstance(node, list):
        return [shorten_values(value) for value in node]
    if not isinstance(node, dict):
        return node
    changes = {"kind": "range", "clusters": 3, "p": None, "needed": 6}
    result = {key: changes[key] if key in changes else shorten_values(value) for key, value in node.items()}
    return result | ({"clusters": [str(i % 3) for i in range(len(node["queries"]))]} if "queries" in node else {})


def level(chance, low=0, high=1):
    return {"chance": chance, "least": low, "most": high}


CHANCE = {"success": level(0.99), "recall_at_1": level(0.01), "cosine": level(0.1, -1), "shift": level(0, -2, 2)}


def content(**changes):
    """metrics.json of schema 5 with every section; `changes` replace some."""
    threat = {"objective": "away", "targeted": False, "attack": "single", "optimiser": "wiener", "norm": "linf"}
    threat |= {"eps": 16 / 255, "gradients": 800, "views_per_step": 8, "risk": "mean", "shared": False, "patch": None}
    threat["transforms"] = "camera"
    coordinates = ["affine angle (deg)", "affine scale (x)", "brightness added (of full scale)"]
    bank = {"views": 512, "refine": 5, "draws": "scrambled Sobol, a stream of its own", "coordinates": coordinates}
    costs = {"forward": 4000, "backward": 4000, "seconds": 12.5}
    result = {"schema": 5, "preset": "evaluate", "seed": 0, "encoder": encoder(), "threat": threat, "bank": bank}
    audit = {"source": "data.gallery", "near_duplicates": 2, "alone": 3}
    result |= {"queries": list(QUERIES), "clusters": list(CLUSTERS), "gallery": 268, "gallery_audit": audit}
    result |= {"chance": CHANCE, "classes": None, "guessed": 0, "identities": 100}
    result |= {"intervals": "95 %, over clusters", "neighbours": 5, "comparisons": secondary(), "primary": primary()}
    result |= {"arms": arm_values(), "wide": {"factor": 1.5, "bank": {"views": 512}, "arms": arm_values(0.8)}}
    result |= {"verification": {"thresholds": {"0.001": 0.71, "0.01": 0.55}, "impostors": 35000}}
    result |= {"costs": {arm: {key: i * value for key, value in costs.items()} for i, arm in enumerate(ARMS)}}
    result |= {"cost": {"forward": 20010, "backward": 12000, "seconds": 125.0}, "sanity": sanity(), "drift": drift()}
    result |= {"radii": radii(), "response": response(), "left_out": left_out(), "deployment": deployment()}
    result |= {"detection": detection(), "explanations": explanations(), "failure": failure()}
    return result | {"failed": [], "left": 0, "gate": None} | changes


def manifest(queries=QUERIES):
    facts = {"schema": 6, "preset": "evaluate", "seed": 0, "encoder": encoder(), "device": "cpu", "threads": 2}
    facts |= {"started": "2026-11-24T09:30:00+00:00", "cpu": "a CPU, 2 cores", "policy": None}
    facts["gallery"] = {"sha256": "0" * 64, "size": 9, "source": "the bundled tiles"}
    facts |= {"overrides": ["config=evaluate", "data.path=my pictures", "data.count=5"], "processes": 1}
    settings = ["engine=fixed", "engine.chunk=48"]
    engine = {"decision": {"precision": "float32"}, "settings": settings, "measurements": []}
    facts |= {"config": {"transforms": {"name": "camera"}}, "engine": engine}
    facts |= {"git": "f862b5573975bd3722a13acaf4e25f588685d9b6", "python": "3.11.7", "platform": "Linux-6.18-x86_64"}
    facts["artefacts"] = {"pictures": {"arms": list(ARMS), "names": file_names(tuple(queries))}}
    return facts | {"versions": {"viewproof": "0.1.0", "torch": "2.15.0", "numpy": "2.4.6"}}


def trace():
    lines, held_out = [], None
    for arm, step in itertools.product(("no_eot", "one_view", "eot"), range(40)):
        loss = 0.9 - FORCE[arm] * (1 - math.exp(-step / 10))
        held_out = loss if step % 5 == 4 else held_out if step else None
        lines.append(Line(arm, "wiener", loss + 0.03 * math.sin(step), held_out, 40 * (step + 1), step))
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
    write(out / "failure.png", rng.integers(0, 255, (120, 400, 3)))
    write(out / "deployment.png", rng.integers(0, 255, (120, 400, 3)))
    write(out / "patch.png", rng.integers(0, 255, (32, 32, 3)))


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(path)


def write_report(out, *values):
    *values, number = values
    write_text(out / "report.html", page(out, *values, (number, number, FORCE["eot"])))
