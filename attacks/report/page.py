"""The report: one page, nothing fetched."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.experiment import Outcome
from attacks.files import write_text
from attacks.patch_facts import rows
from attacks.report.figures import NAMES, SHOWN, drift_curve, loss_curve, typical
from attacks.subject import described


def write_report(out: Path, content: dict[str, Any], outcome: Outcome, warnings: list[str]) -> None:
    """Write `report.html` into the run directory; `views.png` must be there already."""
    page = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    patch = content["threat"]["patch"]
    text = page.get_template("template.html").render(
        metrics=content,
        names=NAMES,
        verdict=verdict(content),
        encoder=described(content["encoder"]) + (rows(patch) if patch else []),
        texture=base64.b64encode((out / "patch.png").read_bytes()).decode() if patch else None,
        shown=content["queries"][typical(outcome)],
        views=SHOWN,
        warnings=warnings,
        # our own drawing; every string of the run goes through autoescape
        curve=Markup(loss_curve(outcome, content["threat"]["objective"])),
        drift=Markup(drift_curve(content["drift"])) if content["drift"] else None,
        sheet=base64.b64encode((out / "views.png").read_bytes()).decode(),
    )
    write_text(out / "report.html", text)


def verdict(content: dict[str, Any]) -> str:
    """One sentence with the interval that it rests on."""
    eot, plain = content["arms"]["eot"], content["arms"]["no_eot"]
    patch = content["threat"].get("patch")
    what = "a picture with the patch" if patch else "an attacked picture"
    if not content["threat"]["targeted"]:
        return (
            f"Under held-out camera views the encoder recognises {what} {_share(eot['recall_at_1'])}; "
            f"when the attack ignores the views, {_share(plain['recall_at_1'])}."
        )
    return (
        f"Under held-out camera views {what} is taken for the attacker's target "
        f"{_share(eot['success'])}; "
        f"when the attack ignores the views, {_share(plain['success'])}."
    )


def _share(value: dict[str, float]) -> str:
    return f"in {value['mean']:.0%} of the views (95 % interval {value['low']:.0%} to {value['high']:.0%})"
