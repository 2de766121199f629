"""The part of `viewproof audit` that is about resizers: its arguments, tables and texts."""

import argparse
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from matplotlib.figure import Figure

from attacks.data.images import load_image
from attacks.evaluation.resizers.identify import Found, identify
from attacks.evaluation.resizers.openness import RATIOS, Openness, Row, table
from attacks.evaluation.resizers.separable import Axis
from attacks.report.resizers import draw_found, draw_table
from attacks.runtime.command_line import print_notes, printable
from attacks.runtime.files import atomic, write_text
from attacks.runtime.tables import write_rows
from transforms.resizing.kernels import KERNELS

#: Height and width of the pictures that a person's preprocessing is given: no whole ratio to the usual encoders.
SIZE = (960, 1280)
#: Smaller pictures hold too few pixels to tell kernels apart.
LEAST = 32
#: What to call in place of an open resizer, by library.
CHANGE = {
    "cv2": "interpolation=cv2.INTER_AREA",
    "pil": "resample=Image.Resampling.BICUBIC, without reducing_gap",
    "torch": 'antialias=True with mode="bilinear" or "bicubic"',
}
#: Figures of the table, with their headings and formats.
FIGURES: dict[str, tuple[str, Callable[[Openness], str]]] = {
    "unread": ("source pixels never read, %", lambda figures: _number(figures.unread, 100, 1)),
    "gain": ("largest energy unseen by an antialiased viewer, a visible shift = 1", lambda f: _number(f.gain, 1, 2)),
    "psnr": ("PSNR of the smallest attack that succeeds, dB", lambda figures: _number(figures.psnr, 1, 1)),
    "seen": (
        "share of the target that an antialiased viewer sees of it, %, and the verdict",
        lambda figures: f"{_number(figures.seen, 100, 1)} {figures.verdict}",
    ),
}


def size(text: str) -> tuple[int, int]:
    """HxW as (height, width)."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None or min(map(int, match.groups())) < LEAST:
        raise argparse.ArgumentTypeError(
            f"must be HEIGHTxWIDTH, each at least {LEAST}, such as 1080x1920; got {text!r}"
        )
    return int(match[1]), int(match[2])


def ratios(text: str) -> list[float]:
    """Numbers, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 2,4.5,8; got {text!r}") from None


def run_resizers(options: argparse.Namespace, function: Callable[[Any], Any] | None) -> None:
    """Print the table of the named kernels, or what `function` is, and write `--out`."""
    given = {"--transforms": options.transforms, "--encoder": options.encoder, "--side": options.side}
    given["--ratios" if function is not None else "--size"] = options.ratios if function is not None else options.size
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` has no meaning here: leave it out (`--size` is of `--callable`, `--ratios` not)"
            )
    image, notes = load_image(options.image)
    print_notes(notes)
    if function is None:
        rows = table(image, options.ratios or RATIOS)
        text, figure, cells = (
            tables(rows),
            draw_table(rows),
            [_cells(row.kernel, row.ratio, row.figures) for row in rows],
        )
    else:
        found = identify(function, image, options.size or SIZE, options.seed)
        text, figure = described(found), draw_found(found)
        cells = [_cells(" ".join(found.kernels), None, found.figures)]
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(options.out / "resizers.txt", f"{text}\n")
        write_rows(options.out / "resizers.csv", cells)
        if figure is not None:
            _save(figure, options.out / "resizers.png")


def _save(figure: Figure, path: Any) -> None:
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _cells(kernel: str, ratio: float | None, figures: Openness) -> dict[str, object]:
    values = {name: getattr(figures, name) for name in FIGURES}
    return {"kernel": kernel, "ratio": ratio, **values, "succeeds": figures.succeeds, "verdict": figures.verdict}


def _number(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{unit * value:.{digits}f}"


def tables(rows: Sequence[Row]) -> str:
    """A table a figure: kernels down, ratios across."""
    ratio = list(dict.fromkeys(row.ratio for row in rows))
    lines = []
    for title, form in FIGURES.values():
        lines += [title, f"{'kernel':<20}" + "".join(f"{each:>13g}" for each in ratio)]
        for name in dict.fromkeys(row.kernel for row in rows):
            cells = [form(row.figures) for row in rows if row.kernel == name]
            lines.append(f"{name:<20}" + "".join(f"{cell:>13}" for cell in cells))
        lines.append("")
    return "\n".join(lines[:-1])


def described(found: Found) -> str:
    """What a preprocessing is, a line a finding."""
    prober, figures = found.prober, found.figures
    down, across = found.lines
    lines = {
        "takes": f"8-bit {prober.box.takes}, here {prober.size[0]} x {prober.size[1]}",
        "kernel": _kernels(found),
        "values": str(prober.values) or "levels as they are",
        "linear": "yes, but for rounding" if found.linear else "no",
        "antialiased": f"{'yes' if found.noise <= 1.5 else 'no'} (energy of noise {found.noise:.2f}; of a mean, 1)",
        "looks at": f"source row {_place(down.scale, down.shift)} and column {_place(across.scale, across.shift)} "
        "for row and column q of the result",
        **{name: f"{form(figures)}: {title}" for name, (title, form) in FIGURES.items() if name != "seen"},
        "seen": f"{_number(figures.seen, 100, 1)}: share of the target that an antialiased viewer sees of it, %",
        "verdict": f"{figures.verdict.upper()}{'' if figures.succeeds else ' (the attack itself fails)'}",
        "change": _change(found),
    }
    return "\n".join(f"{name:<13}{printable(line)}" for name, line in lines.items())


def _place(scale: float, shift: float) -> str:
    return f"{scale:.3f} q {scale / 2 + shift - 0.5:+.2f}"


def _kernels(found: Found) -> str:
    """The names, with their crops; or what is against every one."""
    if not found.kernels:
        return "none of the known"
    size, parts = found.prober.size, []
    for axes, names in groupby(found.kernels, key=found.kernels.__getitem__):
        crops = [_crop(word, axis, n) for word, axis, n in zip(("rows", "columns"), axes, size, strict=True)]
        parts.append(", ".join([" = ".join(names), *filter(None, crops)]))
    exact = {"either": "copies pixels", "8-bit": "in 8 bits", "float": "in floating point"}[found.arithmetic]
    return f"{'; or '.join(parts)}; {exact}"


def _crop(word: str, axis: Axis, length: int) -> str:
    if axis.length < length:
        return f"of {word} {axis.start} to {axis.start + axis.length - 1}"
    if axis.out < axis.virtual:
        return f"to {axis.virtual} {word}, of which {axis.offset} to {axis.offset + axis.out - 1}"
    return ""


def _change(found: Found) -> str:
    libraries = dict.fromkeys(name.split("_")[0] for name in found.kernels)
    advice = "; ".join(f"{library}: {CHANGE[library]}" for library in libraries or CHANGE)
    if found.figures.verdict != "closed":
        return f"resize with an antialiased kernel: {advice}"
    if found.kernels and not any(name == "cv2_area" or KERNELS[name].antialias for name in found.kernels):
        return f"closed at this size, but not antialiased: larger pictures open it. {advice}"
    return "nothing"
