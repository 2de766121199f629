"""What an audit of resizers says: its table, and the rows of resizers.csv."""

from collections.abc import Callable, Sequence

from attacks.resizers.openness import Openness, Row

#: The figures of the table: their headings, and how they are written.
FIGURES: dict[str, tuple[str, Callable[[Openness], str]]] = {
    "unread": ("source pixels never read, %", lambda figures: _number(figures.unread, 100)),
    "gain": ("largest energy unseen by an antialiased viewer; of a visible shift, 1", lambda f: _number(f.gain, 1)),
    "psnr": ("PSNR of the smallest attack that succeeds, dB", lambda figures: _number(figures.psnr, 1)),
    "seen": ("share of the target that an antialiased viewer sees of it, %", lambda f: _number(f.seen, 100)),
    "verdict": ("verdict", lambda figures: figures.verdict),
}


def resizer_cells(row: Row) -> dict[str, object]:
    """A row of resizers.csv."""
    figures = {name: getattr(row.figures, name) for name in (*FIGURES, "succeeds")}
    return {"kernel": row.kernel, "ratio": row.ratio} | figures


def _number(value: float, unit: float) -> str:
    return f"{unit * value:.{1 if unit * value >= 1 else 2}f}"


def resizer_tables(rows: Sequence[Row]) -> str:
    """A table a figure: kernels down, ratios across."""
    ratios = list(dict.fromkeys(row.ratio for row in rows))
    parts = []
    for title, form in FIGURES.values():
        lines = [title, f"{'source pixels per pixel':<24}" + "".join(f"{ratio:>8g}" for ratio in ratios)]
        for name in dict.fromkeys(row.kernel for row in rows):
            cells = [form(row.figures) for row in rows if row.kernel == name]
            lines.append(f"{name:<24}" + "".join(f"{cell:>8}" for cell in cells))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
