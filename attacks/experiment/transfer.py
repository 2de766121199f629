"""A finished run judged on an encoder, in views or on pictures that it was not made for: does it transfer?"""

from collections.abc import Container, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from attacks.data.pictures import digest
from attacks.encoders.description import MODULE
from attacks.encoders.engine import Decision
from attacks.evaluation.judge import CellScores, score_cells
from attacks.experiment.bench import MAIN, Place, bench_of
from attacks.experiment.directory import PreviousRun
from attacks.experiment.preparation import rows_in
from attacks.experiment.result import Result
from attacks.inference.pairs import SignFlipTest, sign_flips
from attacks.report.facts import encoder_name
from attacks.schema.encoder import BLACK_BOXES
from attacks.schema.validate import Run
from attacks.study.assembly import build
from attacks.study.perturbation import perturb
from attacks.study.study import ARMS
from transforms.scene import Shown, taken


@dataclass(frozen=True)
class Transfer:
    """The arms of a `run`, by name, made on one encoder and judged on another, whose SHA-256 is `fingerprint`."""

    run: str
    made_on: str
    judged_on: str
    fingerprint: str
    arms: Mapping[str, CellScores]


def eot_gains(transfers: Sequence[Transfer]) -> list[SignFlipTest | None]:
    """By row success with EOT minus that without, all tests at once; None where the run has no arm `no_eot`."""
    count = sum("no_eot" in item.arms for item in transfers)
    pairs = ((item.arms["eot"], item.arms.get("no_eot")) for item in transfers)
    return [None if other is None else sign_flips(eot.shares, other.shares, count) for eot, other in pairs]


def judge_on(
    previous: PreviousRun,
    content: Mapping[str, Any],
    run: Run,
    encoders: MutableMapping[str, nn.Module],
    result: Result | None = None,
    exclusions: Container[str] = (),
) -> Transfer:
    """Judge the files of a finished run as the configuration `run` says, which is its own but for the encoder, the
    defence and the views, against its gallery; of a shared perturbation those that are held out. `content` is that of
    metrics.json. `encoders`: those by device and task, for the next run. With `result` its perturbation is laid onto
    the pictures of `run.data`, but for those whose digests are `exclusions`. Raises ValueError or OSError, in one
    line, for pictures that are not those of the run, and for a gallery that belongs to its encoder."""
    folder = previous.folder
    place = f"{run.engine.device} {run.task}"  # a score is part of the encoder
    if str(getattr(run.data, "gallery", None)).endswith(".npy"):
        raise ValueError("`RUN` has a gallery of embeddings, which are of its encoder alone: give one with pictures")
    evaluate = replace(run.evaluate, layers=[], pipeline=None, wide=1.0, most=None if result else run.evaluate.most)
    study = build(replace(run, evaluate=evaluate), reuse=encoders.get(place))
    encoders[place] = study.encoder
    # a card names its run
    perturbation = study.perturbation if run.data.size is None else perturb(previous.run, study.queries)
    decision = Decision.from_dict(previous.manifest["engine"]["decision"]).exact
    bench = bench_of(replace(study, perturbation=perturbation), study.encoder, decision, Place(folder))
    bench = bench.only(rows_in(study, content)) if result is None else bench
    queries = bench.study.queries
    for row, pixels in enumerate(() if result else queries.digests):
        if digest(bench.exhibits.pictures("clean", [row])[0]) != pixels:
            raise ValueError(
                f"`{folder}`: its pictures/clean are not the pictures that `data` gives today; restore them"
            )
    candidates = (row for row, pixels in enumerate(queries.digests) if pixels not in exclusions)
    if not (rows := [*candidates] if result else queries.judged):
        raise ValueError("`--data` must have pictures that no RUN was made from; it has none: name others")

    def display(arm: str, rows: Sequence[int]) -> Shown:
        if result is None:
            return bench.exhibits.displayed(arm, rows)
        images = queries.images.to(study.device)
        if arm == "clean":
            return images[rows]
        part, delta = result.lay(arm, queries, study.device)
        return taken(part.evaluated(images, delta), torch.tensor(rows))

    parts = [[rows[i] for i in part] for part in queries.take(rows).ranges(len(rows))]
    arms, clusters = dict[str, CellScores](), tuple(queries.clusters[row] for row in rows)
    for arm in (arm for arm in ARMS if arm in content["arms"]):
        shown = ((display(arm, part), torch.tensor(part)) for part in parts)
        cells = [score_cells(bench.judge, *pictures, bench.banks[MAIN]) for pictures in shown]
        cosine, success = torch.cat([part.cosine for part in cells]), torch.cat([part.success for part in cells])
        arms[arm] = CellScores(cosine, success, clusters)
    made_on = " + ".join([encoder_name(content), *getattr(previous.run.objective, "encoders", ())])
    names = _named(made_on, previous.run), _named(encoder_name({"encoder": study.identity}), run)
    return Transfer(str(folder), *names, str(study.identity["fingerprint"]), arms)


def _named(encoder: str, run: Run) -> str:
    """The name of an encoder behind the defence of a run."""
    return encoder if run.defence.name == "none" else f"{encoder} defence={run.defence.name}"


def is_loadable(run: Run) -> bool:
    """Whether the encoder of a run can be loaded from its record alone."""
    return run.encoder.name not in (*BLACK_BOXES, MODULE)


def transfer_rows(transfers: Sequence[Transfer], tests: Sequence[SignFlipTest | None]) -> list[dict[str, object]]:
    """A row for each run, encoder and arm: success and cosine with their intervals, and of `eot` the typical
    difference in success from `no_eot`, with p for all of the rows at once; `tests` are the `eot_gains`."""
    rows = []
    for item, test in zip(transfers, tests, strict=True):
        for arm, cells in item.arms.items():
            row: dict[str, object] = {"run": item.run, "made_on": item.made_on, "judged_on": item.judged_on}
            row |= {"encoder": item.fingerprint, "arm": arm}
            row |= {"pictures": len(cells.success), "clusters": len(cells.shares)}
            for measure, value in cells.to_dict().items():
                row |= {measure: value["mean"], f"{measure}_low": value["low"], f"{measure}_high": value["high"]}
            gain = test if arm == "eot" else None
            ends = (None,) * 3 if gain is None else gain.difference[:3]
            row |= dict(zip(("gain", "gain_low", "gain_high"), ends, strict=True))
            rows.append(row | {"p": gain and gain.p})
    return rows
