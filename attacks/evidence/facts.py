"""Everything that the pieces of evidence state, gathered once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attacks import __version__
from attacks.eot.bank import bank
from attacks.evidence.custody import Custody, PolicyOrigin, custody_of
from attacks.experiment.bench import WIDE
from attacks.experiment.directory import PreviousRun, open_run
from attacks.experiment.view_scores import read_scores
from attacks.gate.policy import Policy, Requirement
from attacks.gate.verdict import RequirementResult, Verdict, worst_word
from attacks.report.sheets import picture_file
from attacks.runtime.files import sha256
from attacks.runtime.untrusted import mapping
from attacks.schema.encoder import GRADIENT_FREE
from attacks.study.pipeline import defended_views
from attacks.study.printer import lay_on_sheet
from transforms.wrappers import widened

#: Of MITRE ATLAS and NIST AI 100-2 E2025, by what a run does.
TECHNIQUES = {
    "AML.T0043.000": "Craft Adversarial Data: White-Box Optimization",
    "AML.T0043.001": "Craft Adversarial Data: Black-Box Optimization",
    "AML.T0041": "Physical Environment Access",
    "AML.T0042": "Verify Attack",
    "AML.T0015": "Evade AI Model",
    "NISTAML.022": "Evasion",
    "NISTAML.025": "Black-box Evasion",
}


@dataclass(frozen=True)
class WorstView:
    """The view that fails a requirement most: its picture and that picture's `file` in the run directory, its number
    in the bank, the cosine to the clean embedding, and the values of its coordinates by name."""

    picture: str
    file: str
    number: int
    cosine: float
    values: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.3g}" for name, value in self.values)
        return f"{self.picture}, view {self.number}, cosine {self.cosine:.2f}" + (f": {values}" if values else "")


@dataclass(frozen=True)
class RunFacts:
    """A run with its verdict. `files`: the SHA-256 of files.json, which covers every file of the run."""

    name: str
    folder: Path
    verdict: Verdict
    content: Mapping[str, Any]
    files: str
    worst: tuple[WorstView | None, ...]
    custody: Custody = field(default_factory=Custody)
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown_view(self) -> tuple[RequirementResult, WorstView] | None:
        """The requirement whose worst view is shown: the first that fails, else the first of an attacked arm."""
        pairs = [(row, worst) for row, worst in zip(self.verdict.rows, self.worst, strict=True) if worst is not None]
        pairs.sort(key=lambda pair: 0 if pair[0].verdict == "FAIL" else 1 + (pair[0].requirement.arm == "clean"))
        return pairs[0] if pairs else None

    @property
    def blind(self) -> bool:
        """Whether the attack sees answers only. A suite follows gradients too, whatever its optimiser."""
        threat = self.content["threat"]
        return threat["attack"] != "suite" and threat["optimiser"] in GRADIENT_FREE

    @property
    def techniques(self) -> dict[str, str]:
        access = ["AML.T0041"] if self.content["threat"]["patch"] else []
        atlas, nist = ("AML.T0043.001", "NISTAML.025") if self.blind else ("AML.T0043.000", "NISTAML.022")
        return {key: TECHNIQUES[key] for key in (atlas, *access, "AML.T0042", "AML.T0015", nist)}


@dataclass(frozen=True)
class Facts:
    """The policy with the name of its file, since when its bars are locked (None: they are not, or a run does not
    confirm it), and the runs."""

    policy: Policy
    file: str
    lock_date: str | None
    runs: tuple[RunFacts, ...]
    version: str = __version__

    @property
    def rows(self) -> list[tuple[RunFacts, RequirementResult, WorstView | None]]:
        return [(run, *pair) for run in self.runs for pair in zip(run.verdict.rows, run.worst, strict=True)]

    @property
    def problems(self) -> list[tuple[RunFacts, str]]:
        """What does not hold of the runs' records, and of the age of the bars."""
        return [(run, problem) for run in self.runs for problem in run.custody.problems]

    @property
    def verdict(self) -> str:
        """FAIL if a run fails, else UNDECIDED if one is, else PASS."""
        return worst_word(run.verdict.verdict for run in self.runs)


def run_facts(verdict: Verdict, folder: Path, origin: PolicyOrigin) -> RunFacts:
    """A finished run with its verdict on the policy of `origin`. Raises ValueError or OSError."""
    previous, content = open_run(folder)
    worst = tuple(_worst(previous, content, row.requirement) for row in verdict.rows)
    custody, files = custody_of(origin, previous, content), sha256(folder / "files.json")
    return RunFacts(folder.resolve().name, folder, verdict, content, files, worst, custody, previous.manifest)


def requirement_rule(requirement: Requirement) -> str:
    """A stable id of a requirement, whatever its bar: such as success-eot-same-mean-at-most."""
    side = "at-most" if requirement.at_least is None else "at-least"
    parts = (requirement.measure, requirement.arm, requirement.bank, requirement.of, side)
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts))


def _worst(previous: PreviousRun, content: Mapping[str, Any], requirement: Requirement) -> WorstView | None:
    """Of an arm the view with the least cosine, among those in which the attacker succeeds where there are some."""
    run, scores = previous.run, read_scores(previous.folder)
    arms = scores.scores.get(requirement.bank, {})
    if requirement.arm not in arms:
        return None
    cosine = arms[requirement.arm].cosine.double()
    success = scores.success[requirement.bank][requirement.arm]
    if held_out := mapping(content.get("split")).get("judge"):  # the others decide nothing
        fit = torch.tensor([name not in held_out for name in content["queries"]])[:, None]
        cosine, success = cosine.masked_fill(fit, torch.inf), success & ~fit
    at = int((cosine if not success.any() else cosine.masked_fill(~success, torch.inf)).argmin())
    picture, number = divmod(at, cosine.shape[1])
    values: tuple[tuple[str, float], ...] = ()
    if not (run.encoder.stochastic or "passes" in mapping(content.get("encoder"))):
        # Else they are coordinates of the encoder too, which is not loaded.
        camera = defended_views(run.transforms, run.defence, content["bank"]["side"])
        views, purpose = lay_on_sheet(camera, run.printer, run.perturbation), "evaluate"
        if requirement.bank == WIDE:
            views, purpose = widened(views, run.evaluate.wide), "evaluate wide"
        u = bank(views, cosine.shape[1], seed=run.seed, purpose=purpose).u[number : number + 1]
        numbers = views.values(u)[0].tolist() if views.dims else []
        values = tuple(zip(views.names, numbers, strict=True))
    file = f"pictures/{requirement.arm}/{picture_file(content, previous.manifest, picture)}"
    return WorstView(str(content["queries"][picture]), file, number, float(cosine.flatten()[at]), values)
