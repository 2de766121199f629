"""A finished run as its parts again: the scores, tables and pictures of its directory as the values that metrics.json
is made of."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from attacks.evaluation.ablation import ALL, NOTHING, LeftOut, varying
from attacks.evaluation.deployment import Cell, Deployment, deployed_size
from attacks.evaluation.detection import Detection
from attacks.evaluation.drift import VIEWS, Drift
from attacks.evaluation.explain.explanation import Explanations, Maps
from attacks.evaluation.explain.gradients import Reach
from attacks.evaluation.judge import CellScores
from attacks.evaluation.radii import SmallestRadii
from attacks.evaluation.rare.failure import Failures, PictureFailure
from attacks.evaluation.response import Response, Slice, slice_axes
from attacks.experiment.artefact_list import METRICS
from attacks.experiment.batch import SAME, Bench, Failure, arms_of, refinable
from attacks.experiment.configured_slices import configured_parts
from attacks.experiment.directory import misfit
from attacks.experiment.outcome import Outcome
from attacks.experiment.records import costs_of, reading, table
from attacks.experiment.sections import VIEWS as CELL_VIEWS
from attacks.experiment.sections import Section, Sections, sample_of, slices_of
from attacks.experiment.view_scores import ViewScores

Row = Mapping[str, str]
Made = TypeVar("Made")
COST = {"forward": int, "backward": int, "seconds": int | float}
#: What a part needs of its entry in metrics.json.
SHAPES: dict[str, Any] = {
    "radii": {"passes": {"search": int}},
    "deployment": {"missing": [str]},
    "detection": {"size": [int]},
    "explanations": {"missing": [str], "cost": COST},
    "drift": {"cost": {"forward": int, "seconds": int | float}},
}


def outcome_of(bench: Bench, scores: ViewScores, content: Mapping[str, Any], folder: Path) -> Outcome:
    """The result of the experiment: the budget from the pictures, the rest from the files. What no file but
    metrics.json holds, see `attacks.experiment.verify.ONCE`, comes from its `content`."""
    images, rows = bench.parts.queries.images.to(bench.parts.device), range(len(bench.parts.queries))
    arms = arms_of(bench.run, bench.parts)
    budget = {arm: bench.parts.perturbation.norm(bench.exhibits.pictures(arm, rows) - images).cpu() for arm in arms}
    sanity: Any = None if content["sanity"] is None else SimpleNamespace(to_dict=lambda: content["sanity"])
    return Outcome(
        bench,
        {bank: {arm: scores.scores[bank][arm] for arm in arms} for bank in bench.banks},
        {arm: scores.worst[arm] for arm in arms},
        budget,
        {arm: scores.steps[arm] for arm in arms[2:]},
        [],
        costs_of(content, arms[2:]),
        content["cost"]["cached"],
        refinable(bench.run, bench.parts),
        sanity,
        _read("drift", _drift, bench, content, folder) if bench.layers else None,
        tuple(Failure(**failure) for failure in content["failed"]),
        tuple(content["fell_back"]),
        content["left"],
    )


def sections_of(bench: Bench, content: Mapping[str, Any], folder: Path) -> Sections:
    """The optional parts, each from its rows."""
    failed = content["failed_parts"]
    makes: dict[str, Callable[[Bench, Mapping[str, Any], Sequence[Row]], Section]]
    makes = {"radii": _radii, "response": _response, "left_out": _left_out, "deployment": _deployment}
    makes |= {"detection": _detection, "explanations": _explanations, "failure": _failure}
    parts: dict[str, Section | None] = {}
    for name, configured in configured_parts(bench.run, bench.parts.transforms).items():
        there = configured and name not in failed
        parts[name] = _read(name, makes[name], bench, content, folder) if there else None
    return Sections(parts, {}, dict(failed))


def _read(name: str, make: Callable[..., Made], bench: Bench, content: Mapping[str, Any], folder: Path) -> Made:
    """A part from its table and its entry in metrics.json. Raises Damaged."""
    rows = table(folder, name)
    with reading(f"{name}.csv, {METRICS} {name}"):
        if (lacking := misfit(content.get(name), SHAPES.get(name, dict))) is not None:
            raise ValueError(f"`{name} {lacking}` is missing or malformed")
        return make(bench, content, rows)


def _column(rows: Sequence[Row], name: str, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    """A column as a tensor of a shape. Raises ValueError where the number of rows is another."""
    wanted = int(torch.tensor(shape).prod())
    if len(rows) != wanted:
        raise ValueError(f"it must have {wanted} rows; it has {len(rows)}")
    return torch.tensor([float(row[name]) for row in rows], dtype=torch.float64).to(dtype).view(*shape)


def _cells(rows: Sequence[Row], shape: Sequence[int]) -> CellScores:
    return CellScores(_column(rows, "cosine", shape), _column(rows, "success", shape).bool())


def _some(scores: CellScores, at: tuple[int, ...]) -> CellScores:
    return CellScores(scores.cosine[at], scores.success[at])


def _radii(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> SmallestRadii:
    """The held-out successes are shares, and any views with as many have the same tables."""
    queries, views = bench.parts.queries, len(bench.banks[SAME].u)
    count, spent = len(queries), content["costs"]["eot"]
    radius = [{**row, "radius": row["radius"] or "inf"} for row in rows]
    hits = (_column(rows, "success", [count, 1]) * views).round()
    held_out = CellScores(torch.zeros(count, views), torch.arange(views) < hits)
    return SmallestRadii(
        queries.names,
        queries.clusters,
        bench.parts.perturbation.eps,
        _column(radius, "radius", [count], torch.float32),
        _column(rows, "found", [count]),
        held_out,
        (content["radii"]["passes"]["search"], (spent["forward"] + spent["backward"]) // count),
    )


def _response(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Response:  # noqa: ARG001
    plan, sample = slices_of(bench), sample_of(bench, bench.run.evaluate.map_pictures)
    arms, slices, start = arms_of(bench.run, bench.parts), [], 0
    for axes in slice_axes(plan):
        places = int(torch.tensor([len(axis.values) for axis in axes]).prod())
        shape = [len(arms), places, len(sample.names), CELL_VIEWS]
        stop = start + int(torch.tensor(shape).prod())
        both = (x.transpose(1, 2).flatten(2) for x in _cells(rows[start:stop], shape))
        by_arm = dict(zip(arms, map(CellScores, *(x.unbind() for x in both)), strict=True))
        slices.append(Slice(axes, by_arm, CELL_VIEWS, sample.clusters))
        start = stop
    maps = len(plan.maps)
    return Response(tuple(slices[:maps]), tuple(slices[maps:]), sample.names, sample.clusters, CELL_VIEWS)


def _left_out(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> LeftOut:  # noqa: ARG001
    sample, stages = sample_of(bench, bench.run.evaluate.left_out), [*varying(bench.parts.transforms)]
    attacks, tests = [NOTHING, *stages], [ALL, *stages]
    scores = _cells(rows, [len(attacks), len(tests), len(sample.names), len(bench.banks[SAME].u)])
    by_attack = {a: {t: _some(scores, (i, j)) for j, t in enumerate(tests)} for i, a in enumerate(attacks)}
    return LeftOut(by_attack, sample.names, sample.clusters, bench.parts.views.steps)


def _deployment(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Deployment:
    sample, arms = sample_of(bench, bench.run.evaluate.deploy), arms_of(bench.run, bench.parts)
    pairs = [*dict.fromkeys((row["codec"], row["resampler"]) for row in rows)]
    scores = _cells(rows, [len(pairs), len(arms), len(sample.names), 1])
    cells = (Cell(*pair, {arm: _some(scores, (i, j)) for j, arm in enumerate(arms)}) for i, pair in enumerate(pairs))
    height, width = bench.parts.queries.images.shape[2:]
    size = deployed_size(bench.parts.encoder, (height, width))
    return Deployment(tuple(cells), sample.names, sample.clusters, size, tuple(content["deployment"]["missing"]))


def _detection(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Detection:
    arms, pipeline = arms_of(bench.run, bench.parts), bench.parts.pipeline
    sample = sample_of(bench, len(bench.parts.queries))
    height, width = content["detection"]["size"] if pipeline is None else pipeline.size
    by_arm = dict(zip(arms, _column(rows, "cosine", [len(arms), len(sample.names)]), strict=True))
    return Detection(str(bench.run.evaluate.pipeline), (height, width), by_arm, sample.names, sample.clusters)


def _failure(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Failures:  # noqa: ARG001
    names = bench.banks[SAME].transforms.names
    each = tuple(
        PictureFailure(
            row["picture"],
            row["cluster"],
            row["arm"],
            p=float(row["p"]),
            low=float(row["low"]),
            high=float(row["high"]),
            worth=float(row["worth"]),
            views=int(row["views"]),
            method=row["method"],
            values={name: float(row[name]) for name in names},
        )
        for row in rows
    )
    return Failures(each, bench.run.evaluate.particles)


def _explanations(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Explanations:
    sample, arms = sample_of(bench, bench.run.evaluate.explain), arms_of(bench.run, bench.parts)
    shape, none = [len(arms), len(sample.names)], torch.zeros(0)
    likeness = _column(rows, "likeness", shape)
    maps = {arm: Maps(none, likeness[i], None, None) for i, arm in enumerate(arms)}
    reach = None
    if rows[0]["coverage"]:
        names = ("coverage", "view_coverage", "effective_coverage")
        reach = Reach(none, *(_column(rows, name, shape)[0] for name in names))
    recorded = content["explanations"]
    missing, cost = tuple(recorded["missing"]), recorded["cost"]
    head = (sample.names, sample.clusters, maps, recorded["layer"], reach, missing)
    return Explanations(*head, cost["forward"], cost["backward"], cost["seconds"])


def _drift(bench: Bench, content: Mapping[str, Any], rows: Sequence[Row]) -> Drift:
    """The rows hold means over the views."""
    names = tuple(name if pool == "flat" else f"{name}:{pool}" for name, pool in bench.layers.items())
    arms, count = arms_of(bench.run, bench.parts)[1:], len(bench.parts.queries)
    views = min(VIEWS, len(bench.banks[SAME].u))
    cosine = _column(rows, "cosine", [len(names), len(arms), count])[..., None].expand(-1, -1, -1, views)
    cost = content["drift"]["cost"]
    return Drift(names, dict(zip(arms, cosine.unbind(1), strict=True)), cost["forward"], cost["seconds"])
