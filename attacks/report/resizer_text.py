"""What an audit of resizers says: its table, the rows of resizers.csv, and a preprocessing in lines."""

from collections.abc import Callable, Sequence
from itertools import groupby

from attacks.resizers.black_box import ProbeLine
from attacks.resizers.identify import Identification
from attacks.resizers.openness import Openness, Row
from attacks.resizers.separable import KernelAxis
from attacks.runtime.command_line import printable
from transforms.resizing.kernels import KERNELS

#: A kernel whose gain of noise is above this does not average what it drops; a library's antialiased ones have 1.3.
MAX_NOISE = 1.5
#: What to call in place of an open resizer, by library.
CHANGE = {
    "cv2": "interpolation=cv2.INTER_AREA",
    "pil": "resample=Image.Resampling.BICUBIC",
    "torch": 'antialias=True with mode="bilinear" or "bicubic"',
}
#: The figures of the table: their headings, and how they are written.
FIGURES: dict[str, tuple[str, Callable[[Openness], str]]] = {
    "unread": ("source pixels never read, %", lambda figures: _number(figures.unread, 100)),
    "gain": ("largest energy unseen by an antialiased viewer; of a visible shift, 1", lambda f: _number(f.gain, 1)),
    "psnr": ("PSNR of the smallest attack that succeeds, dB", lambda figures: _number(figures.psnr, 1)),
    "seen": ("share of the target that an antialiased viewer sees of it, %", lambda f: _number(f.seen, 100)),
    "verdict": ("verdict", lambda figures: figures.verdict),
}


def resizer_cells(kernel: str, ratio: float | None, figures: Openness) -> dict[str, object]:
    """A row of resizers.csv."""
    return {"kernel": kernel, "ratio": ratio} | {name: getattr(figures, name) for name in (*FIGURES, "succeeds")}


def _number(value: float | None, unit: float) -> str:
    return "-" if value is None else f"{unit * value:.{1 if unit * value >= 1 else 2}f}"


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


def preprocessing_text(finding: Identification) -> str:
    """What a preprocessing is, a line a finding."""
    prober, figures, (rows, columns) = finding.prober, finding.figures, finding.lines
    unread, gain, psnr, share, verdict = (form(figures) for _, form in FIGURES.values())
    lines = {
        "takes": f"8-bit {prober.box.takes}, here {prober.size[0]} x {prober.size[1]}",
        "kernel": _kernels(finding),
        "values": str(prober.values) or "levels as they are",
        "linear": "yes, but for rounding" if finding.linear else "no",
        "antialiased": f"{'no' if finding.noise > MAX_NOISE else 'yes'}; energy of noise {finding.noise:.2f}, "
        "of a mean 1",
        "looks at": f"source row {_place(rows)} and column {_place(columns)} for row and column q of the result",
        "never reads": f"{unread} % of the source pixels",
        "hides": f"at most {gain} times the energy of a visible shift, unseen by an antialiased viewer",
        "attack": f"PSNR {psnr} dB; an antialiased viewer sees {share} % of the target",
        "verdict": verdict.upper() + ("" if figures.succeeds else " (the attack itself does not succeed)"),
        "change": _change(finding),
    }
    if figures.psnr is None:
        missing = dict.fromkeys(("never reads", "hides", "attack"), "not measured: no resize of rows and columns")
        lines |= missing | {"verdict": f"{lines['verdict']}, by the energy of noise"}
    return "\n".join(f"{name:<13}{printable(line)}" for name, line in lines.items())


def _place(line: ProbeLine) -> str:
    return f"{line.scale:.3f} q {line.scale / 2 + line.shift - 0.5:+.2f}"


def _kernels(finding: Identification) -> str:
    if not finding.kernels:
        return "none of the known"
    parts = []
    for axes, names in groupby(finding.kernels, key=finding.kernels.__getitem__):
        crops = zip(("rows", "columns"), axes, finding.prober.size, strict=True)
        parts.append(", ".join([" = ".join(names), *filter(None, (_crop(*crop) for crop in crops))]))
    exact = {"either": "copies pixels", "8-bit": "in 8 bits", "float": "in floating point"}[finding.arithmetic]
    return f"{'; or '.join(parts)}; {exact}"


def _crop(word: str, axis: KernelAxis, length: int) -> str:
    if axis.length < length:
        return f"of {word} {axis.start} to {axis.start + axis.length - 1}"
    if axis.out < axis.virtual:
        return f"to {axis.virtual} {word}, of which {axis.offset} to {axis.offset + axis.out - 1}"
    return ""


def _change(finding: Identification) -> str:
    libraries = dict.fromkeys(name.split("_")[0] for name in finding.kernels)
    advice = "; ".join(f"{library}: {CHANGE[library]}" for library in libraries or CHANGE)
    if finding.figures.verdict != "closed":
        return f"resize with an antialiased kernel: {advice}"
    if finding.kernels and not any(name == "cv2_area" or KERNELS[name].antialias for name in finding.kernels):
        return f"closed at this size, but not antialiased: larger pictures open it; {advice}"
    return "nothing"
