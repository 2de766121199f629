"""The requirements of a run: a policy that is decided at its end, or as soon as its results allow it."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attacks.data.gallery import Gallery
from attacks.encoders.black_box.asked import black_box
from attacks.encoders.tree import optional
from attacks.evaluation.clusters import Row
from attacks.evaluation.per_image import MEANS, RETRIEVAL_MEASURES, SHARES, TAR
from attacks.evaluation.retrieval import rates
from attacks.gate.decide import ONE_ATTACK, decide, decided_row
from attacks.gate.lock import lock_file, policy_record
from attacks.gate.policy import BANKS, POLICY, policy_file, read_policy, refuse_other_encoder, refuse_other_threat
from attacks.runtime.files import sha256
from attacks.schema.validate import Run
from attacks.study.study import Study


def refuse_unfit(run: Run) -> None:
    """Raise ValueError or OSError, in one line, for a policy that cannot be read or is about another threat, and for
    a run that cannot stop as soon as it is decided. Before anything is attacked: a typo must not cost a run."""
    if run.require is not None:
        policy_record(run.require)
        refuse_other_threat(read_policy(run.require), asdict(run))
    if run.evaluate.most is None:
        return
    is_shared = getattr(run.perturbation, "shared", run.perturbation.name == "patch")
    for key, good, reason in (
        ("require", run.require is not None, "it names the policy that is decided"),
        ("evaluate.batch", run.evaluate.batch is not None, "it says after how many pictures to look"),
        ("workers", run.workers == 1, "units end in order"),
        ("shard", run.shard is None, "units end in order"),
        ("perturbation.shared", not is_shared, "each picture is attacked alone"),
        ("data", run.data.name != "scenes", "scenes have an order of their own"),
    ):
        if not good:
            value = getattr(run, key, None) if "." not in key and key != "data" else "another"
            raise ValueError(f"`evaluate.most` needs a fitting `{key}`, because {reason}; got {key}={value}")


def refuse_lacking(file: str | None, study: Study) -> None:
    """Raise ValueError, before an attack, for a policy about another encoder, or what this run will lack."""
    if file is None:
        return
    policy = read_policy(file)
    refuse_other_encoder(policy, study.identity)
    banks = BANKS if study.evaluate.wide != 1 else BANKS[:1]
    offers = {"arm": study.arms, "bank": banks, "measure": _measures(study)}
    for row in policy.requirements:
        for key, values in offers.items():
            if (value := getattr(row, key)) not in values:
                fix = f" ({ONE_ATTACK})" if value == "no_eot" else ""
                raise ValueError(f"`{row}`: the run has no {key} {value}; it has {', '.join(values)}{fix}")


def _measures(study: Study) -> list[str]:
    """The measures that the tables of a run of these parts will have."""
    gallery, lacking = study.gallery, set() if study.goal is not None else {"goal_cosine"}
    is_single = gallery.alone(study.truth)
    if black_box(study.encoder) is None:
        lacking.add("no_answer")
    if optional(study.encoder, "false_alarms") is None or len({*study.queries.clusters}) < 2:
        lacking |= {"fooled_accepted", "flagged"}
    if is_single is None:
        lacking.add("knn")
    elif bool(is_single.all()):
        lacking |= set(RETRIEVAL_MEASURES)
    pictures = isinstance(gallery, Gallery)
    tars = rates(len(gallery), gallery.label_numbers, gallery.cluster_numbers) if pictures else []
    measures = [*MEANS, *SHARES, *(f"{TAR}{rate:g}" for rate in tars)]
    return [name for name in measures if name not in lacking]


def keep(run: Run, out: Path) -> None:
    """Copy the policy and its lock into a new run directory; the record then does not depend on a file elsewhere."""
    if run.require is not None:
        file = policy_file(run.require)
        shutil.copyfile(file, out / POLICY)
        if lock_file(file).exists():
            shutil.copyfile(lock_file(file), lock_file(out / POLICY))


def refuse_changed(run: Run, out: Path) -> None:
    """Raise ValueError where a run that has begun is continued with another policy."""
    if run.require is not None and sha256(policy_file(run.require)) != sha256(out / POLICY):
        raise ValueError(f"`require={run.require}` has changed since the run in {out} began: start a new run")


def verdict_of(study: Study, out: Path, content: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any] | None:
    """The section `gate` of metrics.json, from the policy in the run directory `out`; None without one.

    Raises ValueError where the run is of another encoder, or lacks a measure."""
    if not (out / POLICY).exists():
        return None
    policy = read_policy(out / POLICY)
    refuse_other_encoder(policy, content["encoder"])
    return decide(policy, out.name, content, rows, study.evaluate.most is not None).as_dict()


def is_decided(out: Path, rows: Sequence[Row]) -> bool:
    """Whether the rows so far, of whole clusters, decide every requirement of the policy in `out`."""
    requirements = read_policy(out / POLICY).requirements
    words = ((row.of, decided_row(row, rows, sequential=True).verdict) for row in requirements)
    return all(word == "FAIL" if of == "worst" else word != "UNDECIDED" for of, word in words)
