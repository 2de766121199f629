"""Print the patch of a run: sheets in true size with fiducials, a colour chart and a ruler.

    viewproof print outputs/patch_quickstart
    viewproof print outputs/patch_quickstart --width-mm 180 --paper letter --dpi 600
    viewproof print --chart     # before there is a run: a colour chart, for viewproof score --chart

Writes sheet.pdf (print this), sheet.png (sheet-1.png, ... if it takes several), card.png (what is cut out) and
sheet.json (all positions, in mm) into the run's folder `print`. The card has the run's id and arm, and fiducials of
this run and arm alone. A patch too large for one sheet is tiled.
"""

import argparse
from pathlib import Path

from attacks.physical.chart import write_chart
from attacks.physical.paper import PAPERS
from attacks.physical.sheet import ARMS, write_sheet
from attacks.runtime.command_line import print_notes
from attacks.runtime.untrusted import refuse_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run with perturbation=patch")
    parser.add_argument("--chart", action="store_true", help="a colour chart alone, of no run, into the folder chart")
    width = "the patch's width (default: the run's, else 100)"
    parser.add_argument("--width-mm", type=float, dest="width", metavar="MM", help=width)
    parser.add_argument("--paper", choices=PAPERS, default="a4")
    parser.add_argument("--dpi", type=int, choices=[150, 300, 600], default=300, help="of the print (default: 300)")
    parser.add_argument("--arm", choices=ARMS, default=ARMS[0], help="of the run, whose patch (default: eot)")
    out = "where to write (default: RUN/print, of another arm RUN/print_ARM)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)


def run(options: argparse.Namespace) -> None:
    refuse_file(options.out, "--out")
    arguments = vars(options)
    if arguments.pop("chart"):
        if options.run is not None or options.width is not None or options.arm != ARMS[0]:
            raise ValueError("`--chart` prints the chart alone: drop RUN, --width-mm and --arm")
        folder = options.out or Path("chart")
        sheet = write_chart(folder, options.paper, options.dpi)
        print(f"{folder / 'sheet.pdf'}: a colour chart, {len(sheet.card.chart)} swatches, {sheet.paper}")
        return
    if options.run is None:
        raise ValueError("`RUN` is missing: the folder of a run, or --chart for the colour chart alone")
    result = write_sheet(**arguments)
    print_notes(result.notes)
    sheets, card = result.plan, result.plan.card
    count = "1 sheet" if len(sheets.pages) == 1 else f"{len(sheets.pages)} sheets"
    print(
        f"{result.folder / 'sheet.pdf'}: {count}, {sheets.paper} {sheets.width:g} x {sheets.height:g} mm; patch "
        f"{card.patch.width:.1f} x {card.patch.height:.1f} mm, card {card.width:.1f} x {card.height:.1f} mm, "
        f"fiducials {', '.join(str(tag.number) for tag in card.tags)}; on it stands: {card.words}"
    )
