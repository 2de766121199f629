"""When, where, with what and against which bars a run was made, by its record, and what does not hold of that."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from attacks.evidence.witness import Witness, timestamp
from attacks.experiment.directory import FILES, PreviousRun, read_json
from attacks.experiment.identity import promises
from attacks.experiment.times import time_problems
from attacks.gate.lock import PolicyLock, lock_file, read_lock
from attacks.gate.policy import POLICY, Policy, read_policy
from attacks.report.facts import command_line, encoder_name
from attacks.runtime.clock import instant
from attacks.runtime.files import sha256


@dataclass(frozen=True)
class Custody:
    """Of a run: the day of its `start`, `rows` of a table, (name, text), and `problems`, sentences about what
    does not hold. `is_fixed`: by its record the policy stood before the first step."""

    rows: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    start: str = ""
    is_fixed: bool = False


@dataclass(frozen=True)
class PolicyOrigin:
    """A policy with the `witness` of when it existed, and its `lock`, where there are such."""

    policy: Policy
    witness: Witness | None
    lock: PolicyLock | None


def policy_origin(file: Path) -> PolicyOrigin:
    """The policy in a file with what lies beside it. Raises ValueError or OSError."""
    policy = read_policy(file)
    return PolicyOrigin(policy, timestamp(file), read_lock(policy, file))


def custody_of(origin: PolicyOrigin, previous: PreviousRun, content: Mapping[str, Any]) -> Custody:
    """The custody of a finished run, whose metrics.json has the `content`, by a policy."""
    manifest, folder, witness = previous.manifest, previous.folder, origin.witness
    record, gallery, encoder = manifest["policy"], manifest["gallery"], content["encoder"]
    times = [*time_problems(folder, manifest)]
    late = [*_policy_problems(origin, record), *(times or _age_problems(origin, manifest))]
    faults = [*_contradictions(folder, manifest, content)]
    doubts = [*faults, *([witness.problem] if witness is not None and witness.problem else [])]
    lock = None if record is None else record["lock"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    rows = [
        ("run began", f"{manifest['started']}, by the clock of its machine"),
        ("run ended", str(read_json(folder / FILES).get("ended"))),
        ("machine", f"{manifest['platform']}; {manifest['cpu']}; device {manifest['device']}"),
        ("command", command_line(manifest)),
        ("versions", f"{versions}, Python {manifest.get('python')}, git {manifest.get('git')}"),
        ("policy in the record", "none" if record is None else f"SHA-256 {record['sha256']}"),
        ("lock in the record", "none" if lock is None else f"{lock['date']}, SHA-256 {lock['sha256']}"),
        ("gallery", f"{gallery['size']} rows, {gallery['source']}, SHA-256 {gallery['sha256']}"),
        ("encoder", f"{encoder_name(content)}, SHA-256 of the tensors {encoder['fingerprint']}"),
        ("external timestamp", "none" if witness is None else witness.text),
    ]
    return Custody(tuple(rows), (*late, *doubts), manifest["started"][:10], not (late or faults))


def _policy_problems(origin: PolicyOrigin, record: Mapping[str, Any] | None) -> Iterator[str]:
    """What the record of a run does not hold of a policy and of its lock."""
    late = "so the bars were not fixed beforehand"
    if record is None or record["sha256"] != origin.policy.digest:
        holding = "no policy" if record is None else f"another policy, SHA-256 {record['sha256'][:12]}"
        yield f"requirement first seen after the run: its record holds {holding}, {late}"
    elif origin.lock is not None and (record["lock"] or {}).get("sha256") != origin.lock.sha256:
        holding = "no lock" if record["lock"] is None else f"another lock, of {record['lock']['date']}"
        yield f"the lock of {origin.lock.date} was first seen after the run: its record holds {holding}"
    elif origin.lock is None and record["lock"] is not None:
        yield f"the lock in the record, of {record['lock']['date']}, does not lie beside the policy any more"


def _age_problems(origin: PolicyOrigin, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What says that the bars are younger than the beginning of a run."""
    lock, start = (manifest["policy"] or {"lock": None})["lock"], instant(manifest["started"])
    if lock is not None and instant(lock["date"]) > start:
        yield f"the lock is of {lock['date']}, and the run began before it, at {start}: the lock does not count"
    if instant(origin.policy.date) > start + timedelta(days=1):  # a day, perhaps of another zone
        yield f"the policy states its bars on {origin.policy.date}, and the run began before that, at {start}"
    if origin.witness is not None and origin.witness.time > start:
        yield f"the external timestamp is of {origin.witness.time}, and the run began before it, at {start}"


def _contradictions(folder: Path, manifest: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """The entries of a run's records that are not the same at two places."""
    identity, record, gate = manifest["identity"], manifest["policy"], content["gate"]
    prefix, marks = "the version of ", tuple(row["encoder"]["fingerprint"] for row in (manifest, content))
    versions = {name.removeprefix(prefix): value for name, value in identity.items() if name.startswith(prefix)}
    pairs = {
        "versions": (versions, manifest["versions"]),
        "gallery": (identity.get("the gallery"), manifest["gallery"]["sha256"]),
        "size of the gallery": (manifest["gallery"]["size"], content["gallery"]),
        "encoder": marks,
        "verdict": (gate["policy"]["digest"] if gate else None, record["sha256"] if record else None),
        "fingerprint": (identity.get("the encoder's fingerprint"), marks[0]),
        **{key.removeprefix("the "): (identity.get(key), value) for key, value in promises(manifest).items()},
    }
    files = {} if record is None else {folder / POLICY: record["sha256"]}
    files |= {lock_file(folder / POLICY): record["lock"]["sha256"]} if record and record["lock"] else {}
    pairs |= {path.name: (sha256(path) if path.is_file() else None, digest) for path, digest in files.items()}
    for name in (name for name, (first, second) in pairs.items() if first != second):
        yield f"the record contradicts itself about the {name}: {_short(pairs[name])}"


def _short(pair: tuple[Any, Any]) -> str:
    return " and ".join(text if len(text := json.dumps(value)) <= 60 else f"{text[:57]}..." for value in pair)
