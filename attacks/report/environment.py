"""The jinja2 environment of all pages: every string is escaped, and an undefined name is an error."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.report.colours import DARK, LIGHT, RAMP, shade, variables
from attacks.report.words import PARTS, capitalised, counted, measure_name, p_value, radius, short, value_of

TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Environment:
    """The templates and the functions that they call. Styles and colours are the package's own, so not escaped."""
    result = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.globals |= {
        "light": Markup(variables(LIGHT)),
        "dark": Markup(variables(DARK)),
        "ramp": Markup(", ".join(RAMP)),
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "parts": PARTS,
    }
    result.globals |= {each.__name__: each for each in (shade, value_of, measure_name, p_value, radius)}
    result.filters |= {"short": short, "number": _number, "capitalised": capitalised, "counted": counted}
    return result


def _number(value: Any, digits: int = 3) -> str:
    """Rounded; a zero has no sign."""
    return f"{value:z.{digits}f}"
