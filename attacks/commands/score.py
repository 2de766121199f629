"""Score photographs of a run's printed patch: the same encoder, gallery and measures as the run's own views.

    viewproof print outputs/my_patch          # print, cut out, lay into the scene, photograph
    viewproof score outputs/my_patch photos

    viewproof score --chart photo.jpg --out printer.json    # before there is a run: a printer for printer=measured

A photograph is assigned to a picture of the run by the beginning of its name, as in street--03.jpg, or by its
subfolder; if there is only one picture, to that. One that does not show the patch of this run and arm in its scene is
named with the reason, and left out (docs/photographs_left_out.md). Writes photos.json, photos.csv, overview.png,
rectified/, and, where the colour chart could be read, colour.json. `viewproof run config=RUN/photos/preset.yaml`
makes a second patch for that printer and for the poses that were photographed.
"""

import argparse
from pathlib import Path

from attacks.commands import add_encoder
from attacks.physical.chart import measured_printer
from attacks.physical.photo_report import photo_table
from attacks.physical.scoring import score_photos
from attacks.physical.sheet import ARMS
from attacks.runtime.command_line import print_notes
from attacks.runtime.untrusted import refuse_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run with perturbation=patch")
    parser.add_argument("photos", type=Path, nargs="?", metavar="PHOTOS", help="a folder of photographs")
    chart = "photographs of the colour chart alone; no RUN, no PHOTOS"
    parser.add_argument("--chart", type=Path, nargs="+", metavar="PHOTO", help=chart)
    parser.add_argument("--arm", choices=ARMS, default=ARMS[0], help="of the run, whose print it is (default: eot)")
    parser.add_argument("--picture", metavar="NAME", help="the picture of the run that all photographs show")
    add_encoder(parser, "auto", dest="program")
    out = "where to write (default: RUN/photos; of a chart the file printer.json)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)


def run(options: argparse.Namespace) -> None:
    arguments = vars(options)
    if (chart := arguments.pop("chart")) is not None:
        if options.run is not None:
            raise ValueError("`--chart` is of no run: drop RUN and PHOTOS")
        out = options.out or Path("printer.json")
        printer = measured_printer(chart, out)
        print(
            f"{out}: dE2000 {printer.nominal_error:.1f} before, {printer.held_out_error:.1f} on held-out swatches "
            f"after a fit of degree {printer.degree} ({printer.swatches} swatches); use it with printer=measured "
            f"printer.colour={out}"
        )
        return
    if options.photos is None:
        raise ValueError("`RUN PHOTOS` are missing: a run and a folder of photographs of its print, or --chart PHOTO")
    refuse_file(options.out, "--out")
    content = score_photos(**arguments)
    print_notes(content.notes)
    print(photo_table(content.content))
    print(f"written: {content.folder}; a second patch: viewproof run config={content.folder / 'preset.yaml'}")
