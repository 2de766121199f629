"""Figures as inline SVG: text stays text, colours follow the page, and ids are unique on it."""

import io
import re
from collections.abc import Mapping

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attacks.report.colours import LIGHT, page_colours

#: The most characters of a label.
LONGEST = 60
_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)  # it would style the whole page
_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def to_svg(figure: Figure, name: str, title: str, desc: str, tips: Mapping[str, str] | None = None) -> Markup:
    """The figure as an `<svg role="img">` with a title and a description. `name`, unique on the page, is the prefix
    of all ids; `tips` are titles of single artists, by their gid."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "viewproof", "svg.fonttype": "none", "axes.unicode_minus": False}):
        figure.savefig(text, format="svg", metadata=_METADATA, transparent=True, bbox_inches="tight", pad_inches=0.04)
    svg = text.getvalue()
    svg = _FONT.sub("system-ui, sans-serif", _STYLE.sub("", svg[svg.index("<svg") :]))
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", re.sub(r'(xlink:)?href="#', f'href="#{name}-', svg))
    for gid, tip in (tips or {}).items():
        svg = svg.replace(f'<g id="{name}-{gid}">', f'<g id="{name}-{gid}"><title>{escape(tip)}</title>', 1)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", head)
    texts = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(desc)}</desc>'
    # Safe as it is: every string of a run was escaped above, or by matplotlib.
    return Markup(
        f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc">{texts}{page_colours(body)}'
    )


def plain_text(axis: Axes) -> None:
    """Draw axes in the colours of the page, without a box."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LIGHT["dim"])
    axis.tick_params(colors=LIGHT["dim"], labelsize=8)
    axis.xaxis.label.set(x=0, ha="left")  # where a narrow screen shows it
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set(color=LIGHT["ink"], fontsize=9)


def svg_legend(figure: Figure, axis: Axes, columns: int = 2) -> None:
    """Draw the legend of `axis` above the figure, where it covers nothing."""
    handles, labels = axis.get_legend_handles_labels()
    text = {"fontsize": 8.5, "labelcolor": LIGHT["ink"]}
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, borderaxespad=0, **text)


def axis_label(text: str) -> str:
    """A string of a run as a label: no longer than `LONGEST`, with dollars escaped, which begin a formula."""
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")
