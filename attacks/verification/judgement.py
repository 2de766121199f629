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
from attacks.encoders.passes import passes_of
from attacks.evaluation.clusters import Row
from attacks.evaluation.judge import resisting
from attacks.evaluation.rare.failure import of_row
from attacks.evaluation.scores import Scores
from attacks.experiment.bench import MAIN, Bench
from attacks.experiment.exhibits import Exhibits
from attacks.experiment.sections.section import Section, rows_of_section, sections_of
from attacks.experiment.unit import Unit, worst_cosine
from attacks.experiment.units import units_of
from attacks.experiment.view_scores import NAME, ViewScores
from attacks.runtime.values import Damaged, reading
from attacks.study.study import Study
from attacks.verification.records import abridge, deltas, first_lines
from transforms.draws import stream
from transforms.scene import taken

#: A norm exceeds eps by less, relatively; of the values of noise the share that may round otherwise.
NORM, ROUNDED = 1e-4, 1e-2
#: The slack of cosines behind an encoder that follows the signs of a gradient itself.
SIGNS = 1e-3
#: Scores that no border between two rows of the gallery excuses.
EXACT = ("cosine", "goal_cosine", "distance", "score", "no_answer", "detector")
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
    on a network of eleven layers, cosines move by up to a fiftieth of the step between 1 and the next number. An
    encoder that moves the picture by the signs of its gradient turns those near zero: 1.5e-5 on `pocket`."""
    precision, has_signs = is_half(bench.study.encoder), passes_of(bench.study.encoder).inner > 0
    cosine = Slack().cosine if precision is None else torch.finfo(getattr(torch, precision)).eps / 4
    cosine = max(cosine, SIGNS * has_signs)
    return Slack(cosine, max(Slack().refined, 4 * cosine), max(Slack().border, 4 * cosine))


class Portion(NamedTuple):
    """Which share of views and pictures is judged again, drawn with a seed."""

    share: float
    seed: int

    def of(self, count: int, name: str) -> list[int]:
        """Some of `count`, at least one, in order."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(stream(self.seed, name)))
        return sorted(order[: self.size(count)].tolist())

    def size(self, count: int) -> int:
        """How many of `count`."""
        return max(1, math.ceil(self.share * count))


def picture_problems(bench: Bench, out: Path) -> Iterator[str]:
    """The pictures of each arm are those of the perturbations that the run saved, and these are within its bounds."""
    study, exhibits = bench.study, bench.exhibits
    perturbations, has_texture = deltas(bench, out), study.perturbation.texture_size is not None
    for arm, rows in itertools.product(study.arms, study.ranges):
        part = perturbations.get(arm, [])  # none of clean ones
        part = part if has_texture else part[rows.start : rows.stop]
        yield from _changes(study.only(rows), exhibits, (arm, rows), torch.stack(part) if part else None)
    for arm in study.arms[1:] if has_texture else ():
        texture = exhibits.texture(arm)
        if not torch.equal((texture * 255).round(), (perturbations[arm][0].to(texture) * 255).round()):
            yield f"patches/{arm}.png: it differs from the perturbation that was saved"
    with reading("adversarial.png"):
        mosaic = to_bytes(load_image(out / "adversarial.png")[0])
    if not np.array_equal(mosaic, to_bytes(exhibits.mosaic())):
        yield "adversarial.png: it differs from pictures/eot"
    if has_texture:
        with reading("patch.png"):
            patch = load_texture(out / "patch.png")
        if not torch.equal(patch, exhibits.texture("eot").cpu()):
            yield "patch.png: it differs from patches/eot.png"


def _changes(study: Study, exhibits: Exhibits, at: tuple[str, range], delta: Tensor | None) -> Iterator[str]:
    """The pictures of an arm and rows, those of `study`, with the perturbation that was saved; None: clean ones."""
    (arm, rows), images, perturbation = at, study.queries.images.to(study.device), study.perturbation
    # resampled, it may round otherwise
    slack = 1 if perturbation.texture_size is not None and delta is not None else 0
    pictures, names = exhibits.pictures(arm, rows), [exhibits.names[row] for row in rows]
    expected = images if delta is None else perturbation.for_arm(arm).written(images, delta)
    difference = ((pictures - expected) * 255).round().abs().flatten(1).amax(1)
    for i in (difference > slack).nonzero()[:, 0].tolist():
        source = "the picture of the data" if delta is None else "the perturbation that was saved"
        yield f"pictures/{arm}/{names[i]}: it differs from {source} by up to {difference[i]:g}/255"
    change = perturbation.norm(exhibits.texture(arm).to(images)[None] if slack else pictures - images)
    for i in (change > perturbation.eps * (1 + NORM)).nonzero()[:, 0].tolist():
        yield f"pictures/{arm}/{names[i]}: its change exceeds eps, {change[i]:g}"


def noise_problems(bench: Bench, run: Study, rows: Sequence[int], out: Path) -> Iterator[str]:
    """Whether `noise` follows from seed and configuration. `run` has all pictures, `bench` the `rows` of tables."""
    delta, units = deltas(bench, out)["noise"], units_of(run)

    def noise_of(unit: Unit) -> Tensor:
        study = run.only(range(unit.start, unit.stop)).tied()
        images = study.queries.images.to(study.device)
        random = torch.Generator().manual_seed(stream(unit.seed(study.seed), "noise"))
        return study.perturbation.quantise(study.perturbation.noise(images, random), images)

    def near(delta: Tensor, reference: Tensor) -> bool:
        return float(((delta - reference).abs() > NORM).double().mean()) <= ROUNDED

    noise = [(part, unit.number) for unit in units for part in noise_of(unit)]
    if run.perturbation.shared or run.perturbation.texture_size is not None:
        if not all(near(part, reference) for part, (reference, _) in zip(delta, noise, strict=False)):
            yield "perturbation.safetensors noise: it is not the noise of this seed and perturbation"
        return
    for at, row in enumerate(rows):
        reference, number = noise[row]
        if near(delta[at], reference):
            continue
        if run.places is not None or not near(delta[at], noise_of(Unit(row, row + 1, number, alone=True))[0]):
            name = bench.exhibits.names[at]
            yield f"perturbation.safetensors noise of {name}: it is not the noise of this seed and perturbation"


def view_problems(bench: Bench, claims_of_run: ViewScores, portion: Portion) -> Iterator[str]:
    """The scores of every picture, arm and bank, each in other views, a share of all."""
    cells = itertools.product(bench.banks.items(), bench.study.arms, range(len(bench.study.queries)))
    for (key, bank), arm, row in cells:
        numbers = portion.of(len(bank.u), f"{key}/{arm}/{row}")
        old = claims_of_run.scores[key][arm].taken([row], numbers)
        new = bench.judge(bench.exhibits.displayed(arm, [row]), torch.tensor([row]), bank._replace(u=bank.u[numbers]))
        for name, i, j in _differences(old, new, slack_of(bench).cosine):
            view = numbers[j]
            old_value, value = (getattr(scores, name)[i, j].item() for scores in (old, new))
            if name in EXACT or not _at_border(bench, key, arm, (row, view), (name, int(old_value))):
                place = f"{NAME} {key}/{arm}/{name} of {bench.exhibits.names[row]}, view {view}"
                yield f"{place}: recorded {old_value:g}, judged again {value:g}"


def missable_change(clusters: Sequence[str], views: int, count: int, weights: Sequence[float] = ()) -> float:
    """The largest change of the mean over clusters of a share of views (`success`), with the pictures' `weights`, in
    tables of altered rows of which none is drawn with a probability above `ESCAPE`. Of each picture `count` of its
    `views` are drawn without replacement, apart from all others, so that m altered ones escape with the probability
    C(V-m,k) / C(V,k); the logarithms add up over pictures. Most is gained where a row weighs most for what it risks;
    the last row counts in part, so this is an upper bound."""
    sizes, left, change = Counter(clusters), -math.log(ESCAPE), 0.0
    risks = [-math.log1p(-count / (views - alterations)) for alterations in range(views - count)]
    scales = dict(zip(clusters, weights or [1.0] * len(clusters), strict=True))
    shares = [scales[cluster] / (sum(scales.values()) * sizes[cluster] * views) for cluster in clusters]
    for weight, risk in sorted(itertools.product(shares, risks), key=lambda row: row[1] / row[0]):
        change, left = change + weight * min(1, left / risk), left - risk
        if left <= 0:
            break
    return change


def _differences(old: Scores, new: Scores, slack: float) -> Iterator[tuple[str, int, int]]:
    """The name, picture and view of scores that differ, cosines by more than `slack`."""
    for name in Scores._fields:
        value, new_value = getattr(old, name), getattr(new, name)
        if (value is None) != (new_value is None):
            raise Damaged(f"{NAME}: {name} is {'missing' if value is None else 'not of this configuration'}")
        if value is None:
            continue
        room = slack * value.double().abs().clamp(min=1)  # a distance may be large
        bad = ~((value - new_value).abs() <= room) if value.is_floating_point() else value != new_value
        yield from ((name, i, j) for i, j in bad.nonzero().tolist())


def _at_border(bench: Bench, bank: str, arm: str, at: tuple[int, int], claim: tuple[str, int]) -> bool:
    """Whether a discrete score may be as recorded if similarities to the gallery are off by a cosine's slack."""
    judge, (row, view), (name, value) = bench.judge, at, claim
    view_bank = bench.banks[bank]._replace(u=bench.banks[bank].u[view, None])
    image = taken(bench.exhibits.displayed(arm, [row]), torch.zeros(1, dtype=torch.long))
    features = view_bank.features(image, judge.encoder, 1)[0]
    features = features if judge.signature is None else judge.signature(features)
    alike = (F.normalize(features, dim=1) @ F.normalize(judge.embeddings, dim=1).T)[0].cpu()
    margin = 2 * slack_of(bench).cosine
    if name == "nearest":
        return 0 <= value < len(alike) and bool(alike[value] >= alike.max() - margin)
    if name == "vote":
        falling = alike.sort(descending=True).values
        return bool((-falling.diff() < margin).any())
    right = judge.truth if name == "rank" or judge.goal is None else judge.goal
    positive = judge.known.same(torch.arange(len(alike)), right[row].expand(len(alike))).cpu()
    best, impostors = alike[positive].max(), alike[~positive]
    minimum, maximum = (1 + int((impostors > best + step).sum()) for step in (margin, -margin))
    return minimum <= value <= maximum


def worst_problems(bench: Bench, claims_of_run: ViewScores, portion: Portion) -> Iterator[str]:
    """The cosine in the worst view: of all pictures against those of the bank, of some searched again."""
    rows, batches = portion.of(len(bench.study.queries), "worst"), bench.study.ranges
    for arm in bench.study.arms:
        scores, claims = claims_of_run.scores[MAIN][arm], claims_of_run.worst[arm]
        lowest = resisting(scores)
        for row in (~(claims >= lowest - slack_of(bench).cosine)).nonzero()[:, 0].tolist():
            yield f"{NAME} {arm}/worst of {bench.exhibits.names[row]}: {claims[row]:g}, a view has {lowest[row]:g}"
        # In the run's own batches: in a batch of another size gradient steps round otherwise, and part.
        for numbers in filter(None, ([row for row in rows if row in batch] for batch in batches)):
            anchors = bench.judge.own[torch.tensor(numbers, device=bench.judge.own.device)]
            cosines = worst_cosine(bench, bench.exhibits.displayed(arm, numbers), anchors, scores.taken(numbers))
            for row, value in zip(numbers, cosines.tolist(), strict=True):
                if not abs(float(claims[row]) - value) <= slack_of(bench).refined:
                    yield f"{NAME} {arm}/worst of {bench.exhibits.names[row]}: {claims[row]:g}, again {value:g}"


def section_problems(bench: Bench, tables: Mapping[str, Rows], portion: Portion) -> Iterator[str]:
    """The rows of the sections, of a share of their pictures; `tables` are those of the run, as recorded."""
    parts, meter = sections_of(bench.study), bench.meter()
    for name, old in tables.items():
        section = parts[name]
        if name == "detection" and bench.study.pipeline is None:
            continue
        if section.attacks:
            lines = _radii(bench, old, portion) if name == "radii" else iter(())
        elif section.joint and portion.share < 1:
            continue
        else:
            sample = section.sample(bench)
            part = sample.only(portion.of(len(sample.names), name))
            new = rows_of_section(section, bench, part, meter).rows
            lines = _failures(old, new) if name == "failure" else _row_problems(section, slack_of(bench), old, new)
        yield from first_lines(lines, f"{name}.csv")


def _row_problems(section: Section, slack: Slack, old: Rows, new: Rows) -> Iterator[str]:
    other = (*section.measures, *section.derived)
    if [*old[0]] != [*new[0]]:
        yield f"{section.key}.csv: its columns are {abridge([*old[0]])}; a run has {abridge([*new[0]])}"
        return
    pictures = {row["picture"] for row in new}
    if (count := sum(row["picture"] in pictures for row in old)) != len(new):
        yield f"{section.key}.csv: it has {count} rows of {len(pictures)} pictures; a run has {len(new)}"

    def key(row: Row) -> tuple[str, ...]:
        return tuple("" if value is None else str(value) for column, value in row.items() if column not in other)

    by_key = {key(row): row for row in old}
    if len(by_key) < len(old):
        yield f"{section.key}.csv: two of its rows differ in nothing but what is judged"
    problems, successes = list[str](), list[str]()
    for row in new:
        old_row, place = by_key.get(key(row)), f"{section.key}.csv {', '.join(filter(None, key(row)))}"
        if old_row is None:
            problems.append(f"{place}: there is no such row")
            continue
        for column in (column for column in row if column in section.measures and row[column] is not None):
            old_value, value = float(str(old_row[column] or "nan")), float(row[column])  # type: ignore[arg-type]
            if not abs(old_value - value) <= {"success": 0, "cosine": slack.cosine}.get(column, slack.refined):
                line = f"{place}, {column}: recorded {old_value:g}, judged again {value:g}"
                (successes if column == "success" else problems).append(line)
    yield from problems
    if len(successes) > slack.border * len(new):
        yield from successes


def _failures(old: Rows, new: Rows) -> Iterator[str]:
    """The probabilities of failures: a rounding may lead their search elsewhere, so the intervals must overlap."""
    by_key = {(row["picture"], row["arm"]): of_row(row) for row in old}
    for estimate in map(of_row, new):
        was, place = by_key.get((estimate.picture, estimate.arm)), f"failure.csv {estimate.picture}, {estimate.arm}"
        if was is None:
            yield f"{place}: there is no such row"
            continue
        has_gap = was.estimate_low > estimate.estimate_high or was.estimate_high < estimate.estimate_low
        has_gap = has_gap and min(was.estimate, estimate.estimate) > 0  # a search that found none contradicts nothing
        if not was.low <= was.p <= was.high or not was.estimate_low <= was.estimate <= was.estimate_high:
            yield f"{place}: p is {was.p:g}, its estimate {was.estimate:g}: one lies outside of its own interval"
        elif was.low > estimate.high or was.high < estimate.low or has_gap:
            yield f"{place}: recorded {was.words}, estimated again {estimate.words}"


def _radii(bench: Bench, old: Rows, portion: Portion) -> Iterator[str]:
    """The radii of all files, and the successes of some on the held-out bank."""
    names, perturbation, views = bench.study.queries.names, bench.study.perturbation, len(bench.banks[MAIN].u)
    images = bench.study.queries.images.to(bench.study.device)
    change = perturbation.norm(bench.exhibits.pictures("radius", range(len(names))) - images).tolist()
    for was, size in zip(old, change, strict=True):
        place = f"radii.csv {was['picture']}"
        if (was["views"], was["largest"]) != (str(views), repr(perturbation.eps)):
            yield f"{place}: recorded views {was['views']}, largest {was['largest']}; the run has other ones"
        if was["radius"] and not math.isclose(float(str(was["radius"])), size, rel_tol=NORM):
            yield f"{place}, radius: recorded {was['radius']}, of pictures/radius {size:g}"
    rows = portion.of(len(names), "radii")
    numbers = torch.tensor(rows)
    scores = bench.judge(bench.exhibits.pictures("radius", rows), numbers, bench.banks[MAIN])
    shares = bench.judge.success(scores, numbers).double().mean(1).tolist()
    for row, share in zip(rows, shares, strict=True):
        if not abs(float(str(old[row]["success"])) - share) <= slack_of(bench).border:
            yield f"radii.csv {names[row]}, success: recorded {old[row]['success']}, judged again {share:g}"
