"""Figures as SVG that belongs to a page: text stays text, colours follow the page, ids are its own."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attacks.report.colours import LIGHT, themed

_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>", re.DOTALL)  # it would style the whole page
_DRAWN = {"Date": None, "Creator": None, "Format": None, "Type": None}


def drawn(figure: Figure, name: str, title: str, desc: str, tips: Mapping[str, str] | None = None) -> Markup:
    """The figure as an `<svg role="img">` with a title and a description. `name` is unique on the page and begins all
    its ids; `tips` gives artists, by their gid, a title of their own."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "viewproof", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata=_DRAWN, transparent=True, bbox_inches="tight", pad_inches=0.04)
    svg = text.getvalue()
    svg = _FONT.sub("system-ui, sans-serif", _STYLE.sub("", svg[svg.index("<svg") :]))
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", re.sub(r'(xlink:)?href="#', f'href="#{name}-', svg))
    for gid, tip in (tips or {}).items():
        svg = svg.replace(f'<g id="{name}-{gid}">', f'<g id="{name}-{gid}"><title>{escape(tip)}</title>', 1)
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", head)
    texts = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(desc)}</desc>'
    # The drawing is ours, and every string of a run in it went through matplotlib's or our escaping.
    return Markup(
        f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc">{texts}{themed(body)}'
    )


def plain(axis: Axes) -> None:
    """Axes in the page's own colours, without a box."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LIGHT["dim"])
    axis.tick_params(colors=LIGHT["dim"], labelsize=8)
    axis.xaxis.label.set(color=LIGHT["ink"], fontsize=9)
    axis.yaxis.label.set(color=LIGHT["ink"], fontsize=9)


def legend(figure: Figure, axis: Axes, columns: int = 3) -> None:
    """The legend of `axis` above the figure: nothing lies beneath it."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=LIGHT["ink"],
        borderaxespad=0,
    )


def literal(text: str) -> str:
    """A string of a run as a label: matplotlib would take what stands between two dollars for a formula, and a name
    of any length would leave no room for the figure."""
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")


#: Letters of a label.
LONGEST = 60
