"""Run directories with the files that a comparison of runs reads."""

import json

import torch

from attacks.runtime.tables import write_rows
from tests.helpers import report_pages

NAMES = [f"{i:03}.png" for i in range(12)]
EPS = (4 / 255, 8 / 255)


def shares(seed):
    """A number between 0 and 1 for each name."""
    return torch.rand(len(NAMES), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).tolist()


def summary(folder, content, manifest=None):
    """A run directory without its tables."""
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(content))
    if manifest is not None:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "report.html").write_text("a report")
    return folder


def run(
    folder,
    success,
    *,
    names=NAMES,
    views=64,
    wide=None,
    pixels=None,
    radii=None,
    stages=None,
    side=96,
    identity=None,
    **extra,
):
    """A run with the success of each picture, and 1 minus it as the cosine. `radii`: the smallest, of which None is
    beyond the largest, 4. A mapping in `extra` is merged with that section of metrics.json."""
    content = report_pages.content(queries=list(names), wide=wide and {"factor": wide})
    content["pixels"] = pixels or [f"digest of {name}" for name in names]
    content["bank"] |= {"views": views, "refine": str(folder), "side": side}
    for key, value in extra.items():
        content[key] = (content[key] | value) if key == "threat" else value
    manifest = report_pages.manifest()
    manifest["config"]["transforms"] = {"name": "web", "stages": stages or {}}
    manifest["identity"] = identity or {}
    summary(folder, content, manifest)
    rows = [
        {"bank": bank, "arm": arm, "picture": name, "success": value, "cosine": 1 - value}
        for bank in ("same", "wide")[: 1 if wide is None else 2]
        for arm in ("clean", "eot")
        for name, value in zip(names, success, strict=True)
    ]
    write_rows(folder / "per_image.csv", rows)
    if radii:
        lines = zip(names, radii, strict=True)
        write_rows(folder / "radii.csv", [{"picture": n, "radius": value, "largest": 4.0} for n, value in lines])
    return folder


def encoder(folder, level, eps=EPS[0], name="pocket", seed=0, **extra):
    """A run of an encoder in which the attack succeeds on about `level` of the views of each picture."""
    success = [min(1.0, max(0.0, level + 0.1 * (share - 0.5))) for share in shares(seed)]
    mean = {"mean": sum(success) / len(success), "low": max(0.0, level - 0.1), "high": min(1.0, level + 0.1)}
    arms = {"eot": {"success": mean, "cosine": mean | {"mean": 1 - mean["mean"]}}}
    content = {"encoder": {"name": name, "sha256": name}, "arms": arms, "primary": {"measure": "success"}}
    return run(folder, success, threat={"norm": "linf", "eps": eps}, **content, **extra)
