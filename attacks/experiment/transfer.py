"""The pictures of a finished run judged on an encoder: does the attack transfer to one that it was not made on?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attacks.encoders.description import MODULE
from attacks.encoders.engine import Decision
from attacks.evaluation.judge import CellScores, score_cells
from attacks.experiment.bench import MAIN, Place, bench_of
from attacks.experiment.directory import PreviousRun, refuse_program
from attacks.experiment.preparation import rows_in
from attacks.inference.pairs import SignFlipTest, sign_flips
from attacks.report.facts import encoder_name
from attacks.schema.encoder import BLACK_BOXES, DefenceConfig, EncoderConfig
from attacks.schema.validate import Run
from attacks.study.assembly import build


@dataclass(frozen=True)
class Transfer:
    """The arms of a `run`, made on one encoder and judged on another, by name; `fingerprint` is the SHA-256 of the
    tensors of the second."""

    run: str
    made_on: str
    judged_on: str
    fingerprint: str
    arms: Mapping[str, CellScores]

    def gain(self, tests: int) -> SignFlipTest:
        """Success with EOT minus that without, as one of so many simultaneous tests."""
        return sign_flips(self.arms["eot"].shares, self.arms["no_eot"].shares, tests)


def judge_on(
    previous: PreviousRun, content: Mapping[str, Any], encoder: EncoderConfig, defence: DefenceConfig
) -> Transfer:
    """Judge the files of a finished run on an encoder behind a defence, in the views of the run, against its gallery;
    of a shared perturbation those that are held out. `content` is that of metrics.json. Raises ValueError or OSError,
    in one line, for pictures that are not those of the run, and for an encoder that only its own run can load."""
    run, folder = previous.run, previous.folder
    _refuse(run, encoder)
    evaluate = replace(run.evaluate, layers=[], pipeline=None, wide=1.0)
    study = build(replace(run, encoder=encoder, defence=defence, evaluate=evaluate))
    decision = Decision.from_dict(previous.manifest["engine"]["decision"]).exact
    bench = bench_of(study, study.encoder, decision, Place(folder)).only(rows_in(study, content))
    clean = bench.exhibits.pictures("clean", range(len(bench.study.queries))).cpu()
    if not torch.equal(clean, bench.study.queries.images):
        raise ValueError(f"`{folder}`: its pictures/clean are not the pictures that `data` gives today; restore them")
    rows, clusters = bench.study.queries.judged, bench.study.queries.clusters
    arms = {
        arm: score_cells(bench.judge, bench.exhibits.displayed(arm, rows), torch.tensor(rows), bench.banks[MAIN])
        for arm in bench.study.arms
    }
    units = tuple(clusters[row] for row in rows)
    arms = {arm: cells._replace(clusters=units) for arm, cells in arms.items()}
    made_on = " + ".join([encoder_name(content), *getattr(run.objective, "encoders", ())])
    names = made_on, encoder_name({"encoder": study.identity})
    return Transfer(str(folder), *names, str(study.identity["fingerprint"]), arms)


def is_loadable(run: Run) -> bool:
    """Whether the encoder of a run can be loaded from its record alone."""
    return run.encoder.name not in (*BLACK_BOXES, MODULE)


def _refuse(run: Run, encoder: EncoderConfig) -> None:
    if str(getattr(run.data, "gallery", None)).endswith(".npy"):
        raise ValueError("`RUN` has a gallery of embeddings, which are of its encoder alone: give one with pictures")
    if encoder is run.encoder:
        refuse_program(run, None, "viewproof verify --encoder-code")


def transfer_rows(transfers: Sequence[Transfer]) -> list[dict[str, object]]:
    """A row for each run, encoder and arm: success and cosine with their intervals, and of `eot` the typical
    difference in success from `no_eot`, with p for all of the rows at once."""
    rows = []
    for item in transfers:
        gain = item.gain(len(transfers))
        for arm, cells in item.arms.items():
            row: dict[str, object] = {"run": item.run, "made_on": item.made_on, "judged_on": item.judged_on}
            row |= {"encoder": item.fingerprint, "arm": arm}
            row |= {"pictures": len(cells.success), "clusters": len(cells.shares)}
            for measure, value in cells.to_dict().items():
                row |= {measure: value["mean"], f"{measure}_low": value["low"], f"{measure}_high": value["high"]}
            ends = gain.difference[:3] if arm == "eot" else (None,) * 3
            row |= dict(zip(("gain", "gain_low", "gain_high"), ends, strict=True))
            rows.append(row | {"p": gain.p if arm == "eot" else None})
    return rows
