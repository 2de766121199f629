"""A policy: what an encoder must meet, as data in a YAML file."""

import hashlib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from attacks.evaluation.per_image import MEANS, SHARES, span
from attacks.schema.options import CONFIGS
from attacks.schema.presets import refuse_marks
from attacks.schema.secrets import refuse_credentials
from attacks.schema.suggestions import closest
from attacks.schema.validate import fraction, printable_config, refuse_code

POLICIES = CONFIGS / "policies"
#: In the directory of a run that is required to meet one: the policy as it was when the run began.
POLICY = "policy.yaml"
#: Far more than a policy needs.
MAX_BYTES, MAX_ROWS = 2**16, 100
ARMS = ("clean", "noise", "no_eot", "one_view", "bare", "eot")
BANKS, STATISTICS = ("same", "wide"), ("mean", "p10", "worst")
#: The measures that a bar may be about; an outcome without an answer has no chance level.
POLICY_MEASURES = tuple(measure for measure in (*MEANS, *SHARES) if measure != "no_answer")
#: The arm of the attack, and the measures that rise with its success; all others fall.
ATTACK, HARM = "eot", ("success", "success_survived", "goal_cosine", "fooled_accepted")
#: The share of clusters that must meet the bar of a row `of: p10`.
P10_SHARE = 0.9
HEX = re.compile(r"[0-9a-f]{12,64}")


@dataclass(frozen=True)
class Requirement:
    """A row of a policy: a measure of an arm on a bank of views is at least, or at most, a bar. `of` says what must
    meet it: `mean`, the mean over clusters of pictures; `p10`, 90 % of the clusters; `worst`, each cluster."""

    measure: str
    arm: str
    bank: str = "same"
    at_least: float | None = None
    at_most: float | None = None
    of: str = "mean"

    @property
    def bar(self) -> float:
        return float(self.at_most if self.at_least is None else self.at_least)  # type: ignore[arg-type]

    def meets(self, value: float) -> bool:
        """Whether a value is on the right side of the bar."""
        return value <= self.bar if self.at_least is None else value >= self.bar

    def __str__(self) -> str:
        views = "" if self.bank == "same" else f", {self.bank} views"
        scope = {"mean": "", "p10": f" in {P10_SHARE:.0%} of the clusters", "worst": " in every cluster"}[self.of]
        return f"{self.measure} of {self.arm}{views} {'<=' if self.at_least is None else '>='} {self.bar:g}{scope}"


@dataclass(frozen=True)
class Policy:
    """A claim in a sentence, the date since when it holds, and its requirements. `encoder`: the beginning of the
    SHA-256 of the weights that it is about, or None; `threat`: values that the run's configuration must have;
    `digest`: the SHA-256 of the policy's file."""

    claim: str
    date: str
    requirements: tuple[Requirement, ...]
    encoder: str | None = None
    threat: tuple[tuple[str, str], ...] = ()
    checks: str = "all"
    digest: str = ""


def policy_file(name: str | Path) -> Path:
    """The file of a policy: a path, or the name of one in configs/policies. Raises FileNotFoundError."""
    path, bundled_file = Path(name), POLICIES / f"{name}.yaml"
    if path.suffix not in (".yaml", ".yml") and bundled_file.is_file():
        return bundled_file
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in POLICIES.glob("*.yaml")))
        raise FileNotFoundError(f"policy `{printable_config(path)}` is no file; bundled policies: {names}")
    return path


def read_policy(name: str | Path) -> Policy:
    """Read a policy. It is data: code, tags, aliases, values of the environment and credentials are refused. Raises
    FileNotFoundError or ValueError in one line, with the key, what is allowed, and the value."""
    path = policy_file(name)
    label = f"policy `{printable_config(path)}`"
    data = path.read_bytes()
    if len(data) > MAX_BYTES:
        raise ValueError(f"{label} is larger than {MAX_BYTES // 1024} KiB: is it a policy?")
    try:
        refuse_marks(data.decode(), label)
        content = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{label} is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    refuse_credentials(data.decode(), label)
    refuse_code(content, label)
    return _policy(content, label, hashlib.sha256(data).hexdigest())


def _policy(content: Any, label: str, digest: str) -> Policy:
    _check_keys(content, Policy, {"digest"}, label)
    for key in ("claim", "date", "requirements"):
        if not content.get(key):
            raise ValueError(f"{label}: `{key}` is missing: a policy has a claim, a date and requirements")
    if not isinstance(content["claim"], str):
        raise ValueError(f"{label}: `claim` must be a sentence; got {content['claim']!r}")
    try:
        day = date.fromisoformat(str(content["date"]))
    except ValueError:
        raise ValueError(f"{label}: `date` must be a day such as 2026-11-24; got {content['date']!r}") from None
    encoder = content.get("encoder")
    if encoder is not None and not (isinstance(encoder, str) and HEX.fullmatch(encoder)):
        raise ValueError(f"{label}: `encoder` must be 12 to 64 hexadecimal digits of a SHA-256; got {encoder!r}")
    threat = content.get("threat") or {}
    if not isinstance(threat, Mapping) or not all(isinstance(v, str | int | float) for v in threat.values()):
        raise ValueError(f"{label}: `threat` must map keys of a run to values, as perturbation.eps: 8/255")
    if content.get("checks", "all") != "all":
        raise ValueError(f"{label}: `checks` must be all: no attack whose checks failed can pass")
    rows = content["requirements"]
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise ValueError(f"{label}: `requirements` must be a list of at most {MAX_ROWS} rows")
    requirements = tuple(_requirement(row, f"{label}: requirement {i}") for i, row in enumerate(rows, 1))
    if ATTACK not in {row.arm for row in requirements}:
        rule = f"must have a row of the arm {ATTACK}: the others say nothing of the attack"
        raise ValueError(f"{label}: `requirements` {rule}")
    values = tuple((str(key), str(value)) for key, value in threat.items())
    return Policy(" ".join(content["claim"].split()), day.isoformat(), requirements, encoder, values, digest=digest)


def _requirement(row: Any, label: str) -> Requirement:
    _check_keys(row, Requirement, set(), label)
    result = Requirement(**({"measure": "", "arm": ""} | row))
    for key, choices in (("measure", POLICY_MEASURES), ("arm", ARMS), ("bank", BANKS), ("of", STATISTICS)):
        value = getattr(result, key)
        if value not in choices and not (key == "measure" and re.fullmatch(r"tar_0\.\d+", str(value))):
            rule = f"must be one of {', '.join(choices)}"
            raise ValueError(f"{label}: `{key}` {rule}; got {value!r}{closest(str(value), choices)}")
    bars = [bar for bar in (result.at_least, result.at_most) if bar is not None]
    if len(bars) != 1:
        raise ValueError(f"{label}: give `at_least` or `at_most`, one of the two; got {len(bars)}")
    (bar,), (low, high) = bars, span(result.measure)
    if isinstance(bar, bool) or not isinstance(bar, int | float) or not low <= bar <= 1:
        raise ValueError(f"{label}: the bar of {result.measure} must be a number from {low:g} to 1; got {bar!r}")
    harms = result.measure in HARM or (result.measure, result.arm) == ("flagged", "clean")  # a false alarm
    side, limit = ("at_most", high) if harms else ("at_least", low)
    if getattr(result, side) is None:
        rule = f"must have `{side}`: the other side praises an attack"
        raise ValueError(f"{label}: {result.measure} {rule}; got {result}")
    if result.bar == limit:
        raise ValueError(f"{label}: the bar of {result.measure} must differ from {limit:g}, which every value meets")
    return result


def _check_keys(content: Any, schema: type, internal: set[str], label: str) -> None:
    keys = [field.name for field in fields(schema) if field.name not in internal]
    if not isinstance(content, Mapping):
        raise ValueError(f"{label} must map keys to values, of {', '.join(keys)}; it is a {type(content).__name__}")
    for key in (key for key in content if key not in keys):
        hint = f"known are {', '.join(keys)}{closest(str(key), keys)}"
        raise ValueError(f"{label}: unknown key `{printable_config(key)}`: {hint}")


def refuse_other_encoder(policy: Policy, encoder: Mapping[str, Any]) -> None:
    """Raise ValueError where a run is not of the policy's encoder; `encoder`: of metrics.json."""
    digests = [str(encoder.get(key)) for key in ("sha256", "fingerprint")]
    if policy.encoder is not None and not any(digest.startswith(policy.encoder) for digest in digests):
        rule = f"the policy is about weights {policy.encoder[:12]}; the run's have the SHA-256"
        raise ValueError(f"`encoder`: {rule} {' and '.join(digest[:12] for digest in digests)}")


def refuse_other_threat(policy: Policy, config: Mapping[str, Any]) -> None:
    """Raise ValueError where a run is not of the policy's threat; `config`: of manifest.json."""
    for key, value in policy.threat:
        node: Any = config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        actual = node.get("name") if isinstance(node, Mapping) else node
        matches = str(actual) == value
        with suppress(ValueError):  # no numbers
            matches = matches or math.isclose(fraction(str(actual), key), fraction(value, key))
        if not matches:
            raise ValueError(f"`threat`: the policy needs {key}={value}; the run has {printable_config(actual)}")
