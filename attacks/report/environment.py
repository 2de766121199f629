"""How every page is made: all strings escaped, a missing name an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.report.colours import DARK, LIGHT, RAMP, shade, variables
from attacks.report.words import PARTS, measure_name, p_value, share, short, value_of

TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Environment:
    """The templates with what they may call. Styles and the one script are ours, and enter as they are."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "light": Markup(variables(LIGHT)),
        "dark": Markup(variables(DARK)),
        "ramp": Markup(", ".join(RAMP)),
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "shade": shade,
        "value_of": value_of,
        "measure_name": measure_name,
        "p_value": p_value,
        "share": share,
        "parts": PARTS,
    }
    made.filters |= {"short": short, "number": _number, "opened": _opened}
    return made


def _number(value: Any, digits: int = 3) -> str:
    """Rounded; a zero has no sign."""
    text = f"{value:.{digits}f}"
    return text if float(text) else f"{0:.{digits}f}"


def _opened(text: str) -> str:
    """With a large first letter; the others stay, for some are names."""
    return text[:1].upper() + text[1:]
