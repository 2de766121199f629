"""The jinja2 environment of all pages: every string is escaped, and an undefined name is an error."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attacks.encoders.description import description_rows
from attacks.evaluation.sanity.check import counts
from attacks.gate.verdict import verdict_rows
from attacks.report import answer, captions, facts, sheets, words
from attacks.report.colours import DARK, LIGHT, RAMP, shade
from attacks.report.columns import in_words

#: What may not have cards, or a word of the glossary in any other text.
MARKS = re.compile(
    rf"<(svg|table|pre|code|summary|a|dl)\b.*?</\1>|<[^>]*>|\b(?P<word>{'|'.join(words.GLOSSARY)})s?\b", re.S | re.I
)
TEMPLATES = Path(__file__).parent / "templates"


@cache  # compiling the templates takes a tenth of a small run
def environment() -> Environment:
    """The templates, with the macros and the names of five modules. Styles and colours are not escaped."""
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    result = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, **options)
    functions = (counts, description_rows, in_words, shade, verdict_rows)
    result.globals |= {function.__name__: function for function in functions}
    for module in (words, facts, answer, captions, sheets):
        result.globals |= vars(module)
    for theme, palette in (("light", LIGHT), ("dark", DARK)):
        result.globals[theme] = Markup(" ".join(f"--{name}: {colour};" for name, colour in palette.items()))
    result.globals["ramp"] = Markup(", ".join(RAMP))
    result.globals["style"] = Markup((TEMPLATES / "style.css").read_text(encoding="utf-8"))
    filters = (words.capital, words.count_text, join_percent, words.short, with_cards)
    result.filters |= {function.__name__: function for function in filters}
    macros = vars(result.get_template("macros.html").module)
    result.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}
    return result


def join_percent(text: str) -> str:
    """The text without line breaks before a sign of per cent."""
    return text.replace(" %", "\u00a0%")


def with_cards(html: str) -> Markup:
    """A section of a page, in which the first use of each word of the glossary shows its card at hover and focus."""
    cards = {word.lower(): (i, meaning) for i, (word, meaning) in enumerate(words.GLOSSARY.items(), 1)}

    def card(match: re.Match[str]) -> str:
        if (entry := cards.pop((match["word"] or "").lower(), None)) is None:
            return match[0]
        text = f'{match[0]}<span class="card" aria-hidden="true">{entry[1]}</span>'
        return f'<dfn tabindex="0" aria-describedby="word-{entry[0]}">{text}</dfn>'

    return Markup(MARKS.sub(card, html))
