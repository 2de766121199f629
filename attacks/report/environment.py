"""The jinja2 environment of all pages: every string is escaped, and an undefined name is an error."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.evaluation.sanity.check import counts
from attacks.report.colours import DARK, LIGHT, RAMP, shade, variables
from attacks.report.facts import aim, step_text
from attacks.report.words import (
    BANKS,
    PARTS,
    capitalised,
    counted,
    fit_arms,
    measure_name,
    numbers,
    p_value,
    radii,
    radius,
    sample,
    sampled,
    short,
    value_of,
)

#: The functions that templates call.
FUNCTIONS = (aim, counts, measure_name, numbers, p_value, radii, radius, sampled, shade, step_text, value_of)
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
        "banks": BANKS,
        "fit_arms": fit_arms,
        "sample": sample,
    }
    result.globals |= {each.__name__: each for each in FUNCTIONS}
    result.filters |= {each.__name__: each for each in (capitalised, counted, short)}
    return result
