"""The jinja2 environment of all pages: every string is escaped, and an undefined name is an error."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.evaluation.sanity.check import counts
from attacks.report import words
from attacks.report.colours import DARK, LIGHT, RAMP, shade, variables
from attacks.report.columns import in_words
from attacks.report.facts import aim, step_text

TEMPLATES = Path(__file__).parent / "templates"


def environment() -> Environment:
    """The templates, with the names of `attacks.report.words`. Its own styles and colours are not escaped."""
    result = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (aim, counts, in_words, shade, step_text)
    result.globals |= vars(words) | {function.__name__: function for function in functions}
    result.globals |= {
        "light": Markup(variables(LIGHT)),
        "dark": Markup(variables(DARK)),
        "ramp": Markup(", ".join(RAMP)),
        "style": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
    }
    result.filters |= {"capital": words.capital, "count_text": words.count_text, "short": words.short}
    return result
