"""The saved pictures against what a run claims of them: their pixels, and their scores in some views."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.data.images import load_image, load_texture, to_bytes
from attacks.encoders.engine.native_precision import is_half
from attacks.evaluation.clusters import Row
from attacks.evaluation.judge import resisting
from attacks.evaluation.rare.failure import of_row
from attacks.evaluation.scores import Scores
from attacks.experiment.artifacts import SHOWN, sheet
from attacks.experiment.bench import SAME, Bench
from attacks.experiment.sections.registry import sections_of
from attacks.experiment.sections.section import Section
from attacks.experiment.unit import Unit, worst_cosine
from attacks.experiment.units import units_of
from attacks.experiment.view_scores import NAME, ViewScores
from attacks.runtime.damage import reading
from attacks.runtime.values import Damaged
from attacks.study.study import Study
from attacks.verification.agreement import short, some
from attacks.verification.records import deltas
from transforms.draws import stream
from transforms.scene import taken

#: A norm exceeds eps by less, relatively; of the values of noise the share that may round otherwise.
NORM, ROUNDED = 1e-4, 1e-2
#: A forgery that escapes with more than this probability is one that a sample can miss.
ESCAPE = 0.05


#: The rows of a table, as recorded or made again.
Rows = Sequence[Row]


class Slack(NamedTuple):
    """How far the results of a run may be from those judged again, on any number of threads."""

    cosine: float = 1e-5
    refined: float = 1e-3  # a cosine refined by gradient steps
    border: float = 1e-3  # share of a part's rows whose success may differ: views between two rows of the gallery


def slack_of(bench: Bench) -> Slack:
    """The slack for the precision of the encoder. A batch of another size rounds half precision otherwise: measured
    on a network of eleven layers, cosines move by up to a fiftieth of the step between 1 and the next number."""
    precision, cosine = is_half(bench.study.encoder), Slack().cosine
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
    study, exhibits = bench.study, bench.exhibits
    count, images, perturbation = len(study.queries), study.queries.images.to(study.device), study.perturbation
    saved = deltas(bench, out)
    slack = 1 if perturbation.texture_size is not None else 0  # it is resampled: another machine may round otherwise
    for arm in study.arms:
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


def noise(bench: Bench, whole: Study, rows: Sequence[int], out: Path) -> Iterator[str]:
    """The arm `noise` follows from the seed and the perturbation's configuration alone.

    Args:
        whole: the study of all pictures; `bench` is of the `rows` in the tables.
    """
    saved, size = deltas(bench, out)["noise"], whole.unit_size

    def noise_of(unit: Unit) -> Tensor:
        study = whole.only(range(unit.start, unit.stop))
        images = study.queries.images.to(study.device)
        random = torch.Generator().manual_seed(stream(unit.seed(study.seed), "noise"))
        return study.perturbation.quantise(study.perturbation.noise(images, random), images)

    def near(one: Tensor, other: Tensor) -> bool:
        return float(((one - other).abs() > NORM).double().mean()) <= ROUNDED

    blocks = [noise_of(unit) for unit in units_of(whole)]
    if whole.perturbation.shared or whole.perturbation.texture_size is not None:
        if not near(saved, blocks[0][: len(saved)]):
            yield "perturbation.safetensors noise: it is not the noise of this seed and perturbation"
        return
    for at, row in enumerate(rows):
        again = blocks[row // size][row % size]
        if near(saved[at], again):
            continue
        if not near(saved[at], noise_of(Unit(row, row + 1, row // size, alone=True))[0]):
            name = bench.exhibits.names[at]
            yield f"perturbation.safetensors noise of {name}: it is not the noise of this seed and perturbation"


def views(bench: Bench, recorded: ViewScores, chosen: Drawn) -> Iterator[str]:
    """The scores of a share of the views, of every picture, arm and bank."""
    for bank in bench.banks:
        yield from _views(bench, bank, recorded.scores[bank], chosen)


def _views(bench: Bench, bank: str, scores: Mapping[str, Scores], chosen: Drawn) -> Iterator[str]:
    """The same for the `scores` by arm in one bank, of each picture in other views."""
    whole, judge = bench.banks[bank], bench.judge
    for arm in bench.study.arms:
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
    rows = chosen.of(len(bench.study.queries), "worst")
    size = bench.study.unit_size
    for arm in bench.study.arms:
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


def sections(bench: Bench, tables: Mapping[str, Rows], chosen: Drawn) -> Iterator[str]:
    """The rows of the sections, of a share of their pictures.

    Args:
        tables: the rows of each section that the run has, as recorded.
    """
    made, meter = sections_of(bench.study), bench.meter()
    for name, recorded in tables.items():
        section = made[name]
        if section is None or (name == "detection" and bench.study.pipeline is None):
            continue
        if section.attacks:
            lines = _radii(bench, recorded, chosen) if name == "radii" else iter(())
        elif section.joint and chosen.share < 1:
            continue
        else:
            sample = section.sample(bench)
            again = section.rows(bench, sample.only(chosen.of(len(sample.names), name)), meter).rows
            lines = (_failures if name == "failure" else partial(_rows_apart, section, slack_of(bench)))(
                recorded, again
            )
        yield from some(lines, f"{name}.csv")


#: The columns of a part that are judged; all others say of what.
MEASURED = ["cosine", "success", "likeness", "coverage", "view_coverage", "effective_coverage"]


def _rows_apart(section: Section, slack: Slack, recorded: Rows, again: Rows) -> Iterator[str]:
    other = (*MEASURED, *section.derived)
    if [*recorded[0]] != [*again[0]]:
        yield f"{section.key}.csv: its columns are {short([*recorded[0]])}; a run has {short([*again[0]])}"
        return
    pictures = {row["picture"] for row in again}
    if (count := sum(row["picture"] in pictures for row in recorded)) != len(again):
        yield f"{section.key}.csv: it has {count} rows of {len(pictures)} pictures; a run has {len(again)}"

    def key(row: Row) -> tuple[str, ...]:
        return tuple("" if value is None else str(value) for column, value in row.items() if column not in other)

    by_key = {key(row): row for row in recorded}
    flipped: list[str] = []
    for row in again:
        was, place = by_key.get(key(row)), f"{section.key}.csv {', '.join(filter(None, key(row)))}"
        if was is None:
            yield f"{place}: there is no such row"
            continue
        for column in (column for column in row if column in MEASURED and row[column] is not None):
            one, two = float(str(was[column] or "nan")), float(row[column])  # type: ignore[arg-type]
            if not abs(one - two) <= {"success": 0, "cosine": slack.cosine}.get(column, slack.refined):
                line = f"{place}, {column}: recorded {one:g}, judged again {two:g}"
                if column != "success":
                    yield line
                else:
                    flipped.append(line)
    if len(flipped) > slack.border * len(again):
        yield from flipped


def _failures(recorded: Rows, again: Rows) -> Iterator[str]:
    """The probabilities of failures of some pictures. Their search is random, and on another machine a rounding may
    lead it elsewhere: the intervals must overlap."""
    by_key = {(row["picture"], row["arm"]): of_row(row) for row in recorded}
    for estimate in map(of_row, again):
        was, place = by_key.get((estimate.picture, estimate.arm)), f"failure.csv {estimate.picture}, {estimate.arm}"
        if was is None:
            yield f"{place}: there is no such row"
        elif not was.low <= was.p <= was.high:
            yield f"{place}: p is {was.p:g}, outside of its own interval"
        elif was.low > estimate.high or was.high < estimate.low:
            yield f"{place}: recorded {was.words}, estimated again {estimate.words}"


def _radii(bench: Bench, recorded: Rows, chosen: Drawn) -> Iterator[str]:
    """The radii of all files, and the successes of some on the held-out bank."""
    names, perturbation, views = bench.study.queries.names, bench.study.perturbation, len(bench.banks[SAME].u)
    images = bench.study.queries.images.to(bench.study.device)
    change = perturbation.norm(bench.exhibits.pictures("radius", range(len(names))) - images).tolist()
    for was, size in zip(recorded, change, strict=True):
        place = f"radii.csv {was['picture']}"
        if (was["views"], was["largest"]) != (str(views), repr(perturbation.eps)):
            yield f"{place}: recorded views {was['views']}, largest {was['largest']}; the run has other ones"
        if was["radius"] and not math.isclose(float(str(was["radius"])), size, rel_tol=NORM):
            yield f"{place}, radius: recorded {was['radius']}, of pictures/radius {size:g}"
    rows = chosen.of(len(names), "radii")
    numbers = torch.tensor(rows)
    scores = bench.judge(bench.exhibits.pictures("radius", rows), numbers, bench.banks[SAME])
    shares = bench.judge.success(scores, numbers).double().mean(1).tolist()
    for row, share in zip(rows, shares, strict=True):
        if not abs(float(str(recorded[row]["success"])) - share) <= slack_of(bench).border:
            yield f"radii.csv {names[row]}, success: recorded {recorded[row]['success']}, judged again {share:g}"
