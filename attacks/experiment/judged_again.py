"""The saved pictures against what a run claims of them: their pixels, and their scores in some views."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.images import load_image, load_texture, to_bytes
from attacks.encoders.engine.native_precision import is_half
from attacks.evaluation.clusters import Sample
from attacks.evaluation.judge import resisting
from attacks.evaluation.scores import Scores
from attacks.experiment.agreement import some
from attacks.experiment.artifacts import SHOWN, sheet
from attacks.experiment.batch import SAME, Bench, Unit, arms_of, drift_of, part_of, worst_cosine
from attacks.experiment.failure import failures_of
from attacks.experiment.records import deltas, reading, table
from attacks.experiment.sections import cosines_of, deployment_of, explanations_of, response_of, sample_of
from attacks.experiment.units import unit_size
from attacks.experiment.view_scores import NAME, ViewScores
from attacks.runtime.values import Damaged
from transforms.draws import stream
from transforms.scene import taken

#: A norm exceeds eps by less, relatively; of the values of noise the share that may round otherwise.
NORM, ROUNDED = 1e-4, 1e-2
#: A forgery that escapes with more than this probability is one that a sample can miss.
ESCAPE = 0.05


class Slack(NamedTuple):
    """How far the results of a run may be from those judged again, on any number of threads."""

    cosine: float = 1e-5
    refined: float = 1e-3  # a cosine refined by gradient steps
    border: float = 1e-3  # share of a part's rows whose success may differ: views between two rows of the gallery


def slack_of(bench: Bench) -> Slack:
    """The slack for the precision of the encoder. A batch of another size rounds half precision otherwise: measured
    on a network of eleven layers, cosines move by up to a fiftieth of the step between 1 and the next number."""
    precision, cosine = is_half(bench.parts.encoder), Slack().cosine
    if precision is not None:
        cosine = torch.finfo(getattr(torch, precision)).eps / 4
    return Slack(cosine, max(Slack().refined, 4 * cosine), max(Slack().border, 4 * cosine))


class Drawn(NamedTuple):
    """Which share of views and pictures is judged again, drawn with a seed."""

    share: float
    seed: int

    def of(self, count: int, name: str) -> list[int]:
        """Some of `count`, at least one, in order."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(stream(self.seed, name)))
        return sorted(order[: self.many(count)].tolist())

    def many(self, count: int) -> int:
        """How many of `count`."""
        return max(1, math.ceil(self.share * count))


def pixels(bench: Bench, out: Path) -> Iterator[str]:
    """The pictures of each arm are those of the perturbations that the run saved, and these are within its bounds."""
    parts, exhibits = bench.parts, bench.exhibits
    count, images, perturbation = len(parts.queries), parts.queries.images.to(parts.device), parts.perturbation
    saved = deltas(bench, out)
    slack = 1 if perturbation.texture_size is not None else 0  # it is resampled: another machine may round otherwise
    for arm in arms_of(bench.run, parts):
        pictures = exhibits.pictures(arm, range(count))
        wanted = images if arm == "clean" else perturbation.for_arm(arm).written(images, saved[arm])
        apart = ((pictures - wanted) * 255).round().abs().flatten(1).amax(1)
        for row in (apart > (slack if arm != "clean" else 0)).nonzero()[:, 0].tolist():
            source = "the picture of the data" if arm == "clean" else "the perturbation that was saved"
            yield f"pictures/{arm}/{exhibits.names[row]}: it differs from {source} by up to {apart[row]:g}/255"
        if arm == "clean":
            continue
        texture = exhibits.texture(arm).to(images) if slack else saved[arm][:0]
        change = perturbation.norm(texture[None] if slack else pictures - images)
        for row in (change > perturbation.eps * (1 + NORM)).nonzero()[:, 0].tolist():
            yield f"pictures/{arm}/{exhibits.names[row]}: its change exceeds eps, {change[row]:g}"
        if slack and not torch.equal((texture * 255).round(), (saved[arm][0] * 255).round()):
            yield f"patches/{arm}.png: it differs from the perturbation that was saved"
    shown = to_bytes(sheet(exhibits.pictures("eot", range(min(SHOWN, count)))))
    with reading("adversarial.png"):
        mosaic = to_bytes(load_image(out / "adversarial.png")[0])
    if not np.array_equal(shown, mosaic):
        yield "adversarial.png: it differs from pictures/eot"
    if slack:
        with reading("patch.png"):
            patch = load_texture(out / "patch.png")
        if not torch.equal(patch, exhibits.texture("eot").cpu()):
            yield "patch.png: it differs from patches/eot.png"


def noise(bench: Bench, everyone: Bench, kept: Sequence[int], out: Path) -> Iterator[str]:
    """The arm `noise` follows from the seed and the perturbation's configuration alone.

    Args:
        everyone: the bench of all pictures; `bench` is that of the `kept` ones.
    """
    parts, run = everyone.parts, bench.run
    saved = deltas(bench, out)["noise"]
    size, count = unit_size(parts, run.evaluate.batch), len(parts.queries)

    def drawn(unit: Unit) -> Tensor:
        own = part_of(parts, range(unit.start, unit.stop))
        images = own.queries.images.to(parts.device)
        random = torch.Generator().manual_seed(stream(unit.seed(run.seed), "noise"))
        return own.perturbation.quantise(own.perturbation.noise(images, random), images)

    def near(one: Tensor, other: Tensor) -> bool:
        return float(((one - other).abs() > NORM).double().mean()) <= ROUNDED

    whole = [drawn(Unit(at, min(at + size, count), at // size)) for at in range(0, count, size)]
    if parts.perturbation.shared or parts.perturbation.texture_size is not None:
        if not near(saved, whole[0][: len(saved)]):
            yield "perturbation.safetensors noise: it is not the noise of this seed and perturbation"
        return
    for at, row in enumerate(kept):
        own = whole[row // size][row % size]
        if not near(saved[at], own) and not near(saved[at], drawn(Unit(row, row + 1, row // size, alone=True))[0]):
            name = bench.exhibits.names[at]
            yield f"perturbation.safetensors noise of {name}: it is not the noise of this seed and perturbation"


def views(bench: Bench, recorded: ViewScores, chosen: Drawn) -> Iterator[str]:
    """The scores of a share of the views, of every picture, arm and bank."""
    for bank in bench.banks:
        yield from _views(bench, bank, recorded.scores[bank], chosen)


def _views(bench: Bench, bank: str, scores: Mapping[str, Scores], chosen: Drawn) -> Iterator[str]:
    """The same for the `scores` by arm in one bank, of each picture in other views."""
    whole, judge = bench.banks[bank], bench.judge
    for arm in arms_of(bench.run, bench.parts):
        for row in range(len(scores[arm].cosine)):
            at = chosen.of(len(whole.u), f"{bank}/{arm}/{row}")
            again = judge(bench.exhibits.shown(arm, [row]), torch.tensor([row]), whole._replace(u=whole.u[at]))
            was, picture = scores[arm].taken([row], at), bench.exhibits.names[row]
            for name, i, j in _apart(was, again, slack_of(bench).cosine):
                view = at[j]
                one, other = (getattr(each, name)[i, j].item() for each in (was, again))
                if name == "cosine" or not _at_border(bench, bank, arm, (row, view), (name, int(one))):
                    place = f"{NAME} {bank}/{arm}/{name} of {picture}, view {view}"
                    yield f"{place}: recorded {one:g}, judged again {other:g}"


def missed(clusters: Sequence[str], views: int, drawn: int) -> float:
    """The largest change of the mean over clusters of a share of views (`success`), in tables of altered rows of
    which none is drawn with a probability above `ESCAPE`. Of each picture `drawn` of its `views` are drawn without
    replacement, apart from all others, so that m altered ones escape with the probability C(V-m,k) / C(V,k); the
    logarithms add up over pictures. Most is gained where a row weighs most for what it risks; the last row counts
    in part, so this is an upper bound."""
    sizes, left, change = Counter(clusters), -math.log(ESCAPE), 0.0
    risks = [-math.log1p(-drawn / (views - altered)) for altered in range(views - drawn)]
    weights = [1 / (len(sizes) * sizes[cluster] * views) for cluster in clusters]
    rows = sorted(((weight, risk) for weight in weights for risk in risks), key=lambda row: row[1] / row[0])
    for weight, risk in rows:
        change, left = change + weight * min(1, left / risk), left - risk
        if left <= 0:
            break
    return change


def _apart(was: Scores, again: Scores, slack: float) -> Iterator[tuple[str, int, int]]:
    """The scores that differ, cosines by more than `slack`: name, picture and view."""
    for name in Scores._fields:
        one, other = getattr(was, name), getattr(again, name)
        if (one is None) != (other is None):
            raise Damaged(f"{NAME}: {name} is {'missing' if one is None else 'not of this configuration'}")
        if one is None:
            continue
        bad = ~((one - other).abs() <= slack) if one.is_floating_point() else one != other
        yield from ((name, i, j) for i, j in bad.nonzero().tolist())


def _at_border(bench: Bench, bank: str, arm: str, at: tuple[int, int], claim: tuple[str, int]) -> bool:
    """Whether a discrete score may be as it was recorded, if every similarity to the gallery may be off by the
    slack of a cosine."""
    judge, (row, view), (name, value) = bench.judge, at, claim
    one = bench.banks[bank]._replace(u=bench.banks[bank].u[view, None])
    shown = taken(bench.exhibits.shown(arm, [row]), torch.zeros(1, dtype=torch.long))
    features = one.features(shown, judge.encoder, 1)[0]
    features = features if judge.signature is None else judge.signature(features)
    alike = (F.normalize(features, dim=1) @ F.normalize(judge.embeddings, dim=1).T)[0].cpu()
    margin = 2 * slack_of(bench).cosine
    if name == "nearest":
        return 0 <= value < len(alike) and bool(alike[value] >= alike.max() - margin)
    if name == "vote":
        falling = alike.sort(descending=True).values
        return bool((-falling.diff() < margin).any())
    right = judge.truth if name == "rank" or judge.goal is None else judge.goal
    same = judge.known.same(torch.arange(len(alike)), right[row].expand(len(alike))).cpu()
    best, others = alike[same].max(), alike[~same]
    least, most = (1 + int((others > best + step).sum()) for step in (margin, -margin))
    return least <= value <= most


def worst(bench: Bench, recorded: ViewScores, chosen: Drawn) -> Iterator[str]:
    """The cosine in the worst view: of all pictures against those of the bank, of some searched again."""
    rows = chosen.of(len(bench.parts.queries), "worst")
    size = unit_size(bench.parts, bench.run.evaluate.batch)
    for arm in arms_of(bench.run, bench.parts):
        scores, claims = recorded.scores[SAME][arm], recorded.worst[arm]
        least = resisting(scores)
        for row in (~(claims >= least - slack_of(bench).cosine)).nonzero()[:, 0].tolist():
            yield f"{NAME} {arm}/worst of {bench.exhibits.names[row]}: {claims[row]:g}, a view has {least[row]:g}"
        # In the run's own batches: in a batch of another size gradient steps round otherwise, and part.
        for _, batch in itertools.groupby(rows, lambda row: row // size):
            some_rows = [*batch]
            own = bench.judge.own[torch.tensor(some_rows, device=bench.judge.own.device)]
            again = worst_cosine(bench, bench.exhibits.shown(arm, some_rows), own, scores.taken(some_rows))
            for row, value in zip(some_rows, again.tolist(), strict=True):
                if not abs(float(claims[row]) - value) <= slack_of(bench).refined:
                    yield f"{NAME} {arm}/worst of {bench.exhibits.names[row]}: {claims[row]:g}, again {value:g}"


def parts(bench: Bench, out: Path, chosen: Drawn, done: Mapping[str, object]) -> Iterator[str]:
    """The rows of the optional parts, of a share of their pictures; explanations only of all.

    Args:
        done: the parts of the run, None for one that it has not.
    """
    config, slack = bench.run.evaluate, slack_of(bench)
    for name, count, make in (
        ("response", config.map_pictures, response_of),
        ("deployment", config.deploy, deployment_of),
        ("explanations", config.explain, explanations_of),
    ):
        if done.get(name) is None or (name == "explanations" and chosen.share < 1):
            continue
        sample = sample_of(bench, count)
        again = make(bench, of_sample(sample, chosen.of(len(sample.names), name))).rows()
        yield from some(_rows_apart(name, table(out, name), again, slack), f"{name}.csv")
    if bench.layers:
        rows = chosen.of(len(bench.parts.queries), "drift")
        shown = {arm: bench.exhibits.shown(arm, rows) for arm in arms_of(bench.run, bench.parts)}
        again = drift_of(bench, part_of(bench.parts, rows), rows, shown).rows(
            [bench.parts.queries.names[row] for row in rows]
        )
        yield from some(_rows_apart("drift", table(out, "drift"), again, slack), "drift.csv")
    if done.get("detection") is not None and bench.parts.pipeline is not None:
        judged = bench.parts.queries.judged
        rows = [judged[i] for i in chosen.of(len(judged), "detection")]
        each = [(arm, zip(rows, values.tolist(), strict=True)) for arm, values in cosines_of(bench, rows).items()]
        names = bench.parts.queries.names
        again = [
            {"arm": arm, "picture": names[row], "cosine": value}
            for arm, some_rows in each
            for row, value in some_rows
        ]
        was = [{key: row[key] for key in ("arm", "picture", "cosine")} for row in table(out, "detection")]
        yield from some(_rows_apart("detection", was, again, slack), "detection.csv")
    if done.get("failure") is not None:
        yield from some(_failures(bench, out, chosen), "failure.csv")
    if done.get("radii") is not None:
        yield from some(_radii(bench, out, chosen), "radii.csv")


#: The columns of a part that are judged; all others say of what.
MEASURED = ["cosine", "success", "likeness", "coverage", "view_coverage", "effective_coverage"]


def _rows_apart(
    name: str, recorded: Sequence[Mapping[str, str]], again: Sequence[Mapping[str, object]], slack: Slack
) -> Iterator[str]:
    def key(row: Mapping[str, object]) -> tuple[str, ...]:
        return tuple("" if value is None else str(value) for column, value in row.items() if column not in MEASURED)

    by_key = {key(row): row for row in recorded}
    flipped: list[str] = []
    for row in again:
        was, place = by_key.get(key(row)), f"{name}.csv {', '.join(filter(None, key(row)))}"
        if was is None:
            yield f"{place}: there is no such row"
            continue
        for column in (column for column in row if column in MEASURED and row[column] is not None):
            one, other = float(was[column] or "nan"), float(row[column])  # type: ignore[arg-type]
            if not abs(one - other) <= {"success": 0, "cosine": slack.cosine}.get(column, slack.refined):
                line = f"{place}, {column}: recorded {one:g}, judged again {other:g}"
                if column != "success":
                    yield line
                else:
                    flipped.append(line)
    if len(flipped) > slack.border * len(again):
        yield from flipped


def _failures(bench: Bench, out: Path, chosen: Drawn) -> Iterator[str]:
    """The probabilities of failures of some pictures. Their search is random, and on another machine a rounding may
    lead it elsewhere: the intervals must overlap."""
    sample = sample_of(bench, bench.run.evaluate.failure)
    some_pictures = of_sample(sample, chosen.of(len(sample.names), "failure"))
    recorded = {(row["picture"], row["arm"]): row for row in table(out, "failure")}
    for again in failures_of(bench, some_pictures).each:
        was, place = recorded.get((again.picture, again.arm)), f"failure.csv {again.picture}, {again.arm}"
        if was is None:
            yield f"{place}: there is no such row"
        elif not float(was["low"]) <= float(was["p"]) <= float(was["high"]):
            yield f"{place}: p is {was['p']}, outside of its own interval"
        elif float(was["low"]) > again.high or float(was["high"]) < again.low:
            yield f"{place}: recorded {was['p']} [{was['low']}, {was['high']}], estimated again {again.words}"


def _radii(bench: Bench, out: Path, chosen: Drawn) -> Iterator[str]:
    """The radii of all files, and the successes of some on the held-out bank."""
    recorded, names = table(out, "radii"), bench.parts.queries.names
    images = bench.parts.queries.images.to(bench.parts.device)
    change = bench.parts.perturbation.norm(bench.exhibits.pictures("radius", range(len(names))) - images).tolist()
    for was, size in zip(recorded, change, strict=True):
        if was["radius"] and not math.isclose(float(was["radius"]), size, rel_tol=NORM):
            yield f"radii.csv {was['picture']}, radius: recorded {was['radius']}, of pictures/radius {size:g}"
    rows = chosen.of(len(names), "radii")
    numbers = torch.tensor(rows)
    scores = bench.judge(bench.exhibits.pictures("radius", rows), numbers, bench.banks[SAME])
    shares = bench.judge.success(scores, numbers).double().mean(1).tolist()
    for row, share in zip(rows, shares, strict=True):
        if not abs(float(recorded[row]["success"]) - share) <= slack_of(bench).border:
            yield f"radii.csv {names[row]}, success: recorded {recorded[row]['success']}, judged again {share:g}"


def of_sample(sample: Sample, at: Sequence[int]) -> Sample:
    """Some pictures of a sample."""
    names, clusters = (tuple(column[i] for i in at) for column in (sample.names, sample.clusters))
    return Sample(sample.rows[list(at)], names, clusters)
