"""`evidence.html`: the verdict on one page that prints to one or two sheets, for whoever signs it."""

from collections.abc import Mapping
from typing import Any

from attacks.evidence.facts import Facts, RunFacts
from attacks.report.environment import environment
from attacks.report.sheets import Picture, from_file
from attacks.report.words import arm_names, counts_text, interval_text, radius, sample_words


def evidence_page(facts: Facts) -> str:
    """The page, which fetches nothing and runs no scripts."""
    runs = [(run, _rows(run), _picture(run)) for run in facts.runs]
    template = environment().get_template("evidence.html")
    return template.render(facts=facts, runs=runs, not_tested=_not_tested(facts))


def _rows(run: RunFacts) -> list[tuple[str, str]]:
    content, threat = run.content, run.content["threat"]
    size = "a patch" if threat["patch"] else f"{threat['norm']}, eps {radius(threat)}"
    goal = "targeted: the view is taken for the target" if threat["targeted"] else "untargeted: any wrong answer"
    knows = "black box, none of the weights: answers only" if run.blind else "white box, the weights and the views"
    budget = f"{threat['gradients']} {'queries' if run.blind else 'gradients'} a picture"
    bank, arms = content["bank"], content["arms"]
    best = max((arm for arm in arms if arm not in ("clean", "noise")), key=lambda arm: arms[arm]["success"]["mean"])
    ranges = zip(bank["coordinates"], bank["ranges"], strict=True)
    views = [f"{name} {low:.3g}" + (f" to {high:.3g}" if high > low else "") for name, (low, high) in ranges]
    rows = [
        ("encoder", f"{content['encoder']['name']}, SHA-256 of the tensors {run.encoder}"),
        ("pictures", sample_words(content)),
        ("attacker's goal", goal),
        ("knowledge", knows),
        ("capability", f"{size}; {budget}, {threat['optimiser']}"),
        ("techniques", "; ".join(f"{key} {name}" for key, name in run.techniques.items())),
        ("views", f"{bank['views']} held-out views of each picture; {'; '.join(views) or 'the file as it is'}"),
        ("strongest attack", f"{arm_names(content)[best]}: success {interval_text(arms[best]['success'])}"),
        ("checks of the attack", _checks(content["sanity"])),
    ]
    if failure := content["failure"]:
        names = {"clean": "P(failure) of the encoder", "eot": "P(failure) of the attack"}
        counts = counts_text(failure["pictures"], failure["clusters"])
        for arm, (row, *_) in failure["arms"].items():
            text = f"{row['words']} over all views of {row['picture']}, the largest of {counts}"
            rows.append((names[arm], text))
    if run.shown_view is not None:
        rows.append(("worst view", f"{run.shown_view[1]} ({run.shown_view[0].requirement})"))
    return rows


def _checks(sanity: Mapping[str, Any] | None) -> str:
    if sanity is None:
        return "none were made"
    verdicts = [check["verdict"] for check in sanity["checks"]]
    failed = f"; failed: {', '.join(sanity['failed'])}" if sanity["failed"] else ""
    return f"{verdicts.count('passed')} of {len(verdicts) - verdicts.count('skipped')} passed{failed}"


def _not_tested(facts: Facts) -> list[str]:
    threats = [run.content["threat"] for run in facts.runs]
    norms = ", ".join(sorted({"patch" if threat["patch"] else str(threat["norm"]) for threat in threats}))
    wide, rare = (all(run.content[key] for run in facts.runs) for key in ("wide", "failure"))
    lines = [
        f"changes of another kind or size than {norms} above",
        "stronger attacks: every number is an upper bound of the robustness",
        "other encoders, preprocessing and precisions; other pictures than those the sample stands for",
        "views outside of the ranges above" + ("" if wide else ", wider ones included"),
    ]
    if not any(run.blind or run.content["threat"]["attack"] == "suite" for run in facts.runs):
        lines.append("attackers who see answers only, or who transfer attacks from other encoders")
    if all(run.blind for run in facts.runs):
        lines.append("attackers who know the weights")
    if not any(threat["patch"] for threat in threats):
        lines.append("printed patches")
    if not rare:
        lines.append("views that fail more rarely than the held-out ones can show: P(failure) was not estimated")
    return [*lines, "photographs: all views are computed"]


def _picture(run: RunFacts) -> Picture | None:
    """The file of the worst view. Raises ValueError where it is missing."""
    if run.shown_view is None:
        return None
    row, worst = run.shown_view
    picture = from_file(run.folder / worst.file, f"{worst.picture}, {row.requirement.arm}")
    if picture is None:
        raise ValueError(f"`{run.folder / worst.file}`, the picture of the worst view, is missing: put it back")
    return picture
