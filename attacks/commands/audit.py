"""Audit a pipeline: which stages lose the gradient, which pixels never get any; or which resizers hide a picture.

    viewproof audit --transforms camera
    viewproof audit --callable kornia.enhance:equalize --image mine.png --out mine
    viewproof audit --resizers --out mine
    viewproof audit --resizers --callable mine:preprocess --size 1080x1920

`--callable module:attribute` imports code, from the command line only: a configuration never does. `--out DIR` gets
`audit.txt` and `dead_zones.png`.

With `--resizers`: how well each named kernel hides a picture from people that it shows to an encoder; with
`--callable` too, which kernel your own preprocessing is: a function of an 8-bit array (H,W,3) or a PIL image that
returns an array, a tensor or a PIL image. `--out DIR` gets `resizers.txt`, `resizers.csv` and `resizers.png`.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks import load_encoder
from attacks.data.gallery import PHOTOS
from attacks.data.images import load_image
from attacks.report.resizer_text import preprocessing_text, resizer_cells, resizer_tables
from attacks.resizers.identify import identify
from attacks.resizers.openness import RATIOS, openness_table
from attacks.runtime.command_line import print_notes
from attacks.runtime.files import atomic, write_text
from attacks.runtime.plugins import import_object
from attacks.runtime.tables import write_rows
from attacks.runtime.untrusted import refuse_file
from attacks.study.pipeline import preset
from transforms import audit, resize

PHOTO = PHOTOS / "astronaut.png"
#: Height and width of the pictures that a person's preprocessing is given: no whole ratio to the usual encoders; and
#: the least side, below which there are too few pixels to tell kernels apart.
SIZE, MIN_SIDE = (960, 1280), 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--transforms", metavar="NAME", help="a preset of configs/transforms, or a YAML file")
    text = "a transform; with --resizers, a preprocessing"
    source.add_argument("--callable", metavar="MODULE:ATTRIBUTE", help=text)
    parser.add_argument("--resizers", action="store_true", help="which resizers are open to a hidden picture")
    parser.add_argument("--size", type=_size, help="HxW of the pictures for --resizers --callable (960x1280)")
    parser.add_argument("--ratios", type=_ratios, help="of --resizers, source pixels per pixel (1.5,2,3,4,6,8)")
    parser.add_argument("--image", type=Path, default=PHOTO, help="a picture file (default: a bundled photograph)")
    parser.add_argument("--side", type=int, help="reduce the picture's shorter side to this many pixels first")
    parser.add_argument("--encoder", choices=["pocket"], help="also look for a loss that is flat at delta = 0")
    parser.add_argument("--draws", type=int, default=16, help="number of views (default: 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write texts, tables and pictures there")


def run(options: argparse.Namespace) -> None:
    refuse_file(options.out, "--out")
    if options.resizers:
        _resizers(options, import_object(options.callable, "--callable") if options.callable else None)
        return
    for name in ("size", "ratios"):
        if getattr(options, name) is not None:
            raise ValueError(f"`--{name}` is of `--resizers`; add it, or leave `--{name}` out")
    if not (options.transforms or options.callable):
        raise ValueError("one of `--transforms`, `--callable` and `--resizers` is required")
    pipeline = preset(options.transforms) if options.transforms else import_object(options.callable, "--callable")
    image, notes = load_image(options.image)
    print_notes(notes)
    if options.side is not None:
        side = min(image.shape[1:])
        if not 1 <= options.side <= side:
            raise ValueError(f"`--side` must be 1 to {side}, the picture's shorter side; got {options.side}")
        image = resize(image[None], options.side, "pil_bicubic")[0].clamp(0, 1)
    encoder = load_encoder(options.encoder) if options.encoder else None
    report = audit(pipeline, image, encoder, draws=options.draws, seed=options.seed)
    print(report)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(options.out / "audit.txt", f"{report}\n")
        report.save_dead_zones(options.out / "dead_zones.png")


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None or min(map(int, match.groups())) < MIN_SIDE:
        raise argparse.ArgumentTypeError(f"must be HxW, each at least {MIN_SIDE}, such as 1080x1920; got {text!r}")
    return int(match[1]), int(match[2])


def _ratios(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 2,4.5,8; got {text!r}") from None


def _resizers(options: argparse.Namespace, function: Callable[[Any], Any] | None) -> None:
    flags, other = ("`--resizers`", "size") if function is None else ("`--resizers --callable`", "ratios")
    for name in ("transforms", "encoder", "side", other):
        if getattr(options, name) is not None:
            raise ValueError(f"`--{name}` means nothing with {flags}; leave it out")
    from attacks.report.panels import draw_example, draw_table  # here: matplotlib takes a while to import

    image, notes = load_image(options.image)
    print_notes(notes)
    figure: Any = None
    if function is None:
        rows = openness_table(image, options.ratios or RATIOS)
        text, figure = resizer_tables(rows), draw_table(rows)
        cells = [resizer_cells(row.kernel, row.ratio, row.figures) for row in rows]
    else:
        finding = identify(function, image, options.size or SIZE, options.seed)
        text = preprocessing_text(finding)
        if finding.example is not None:
            kernel = " = ".join(finding.kernels) or "none of the known"
            figure = draw_example(finding.example, f"{kernel}, {finding.figures.verdict}")
        cells = [resizer_cells(" ".join(finding.kernels), None, finding.figures)]
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_text(options.out / "resizers.txt", f"{text}\n")
        write_rows(options.out / "resizers.csv", cells)
        if figure is not None:
            with atomic(options.out / "resizers.png") as temporary:
                figure.savefig(temporary, format="png", dpi=120)
