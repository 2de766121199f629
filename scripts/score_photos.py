"""Score photographs of a run's printed patch: the same encoder, gallery and measures as the run's own views.

    python scripts/print_patch.py outputs/my_patch          # print, cut out, lay into the scene, photograph
    python scripts/score_photos.py outputs/my_patch photos

A photograph is assigned to a picture of the run by the beginning of its name, as in street--03.jpg, or by its
subfolder; if there is only one picture, to that. The patch is located by its fiducials, or by --quad where there are
none.

Writes photos.json, photos.csv, overview.png, rectified/, and, where the colour chart could be read, colour.json: how
printer, light and camera changed the colours. `python -m attacks.run config=RUN/photos/preset.yaml` makes a second
patch for that printer and for the poses that were photographed.
"""

import argparse
import sys
from pathlib import Path

from attacks.experiment.directory import PROGRAMS
from attacks.physical.photo_measure import VIEWS
from attacks.physical.photo_report import table
from attacks.physical.scoring import score_photos
from attacks.runtime.command_line import Parser, exit_code, print_notes


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 after an error of one line."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run with perturbation=patch")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="a folder of photographs")
    parser.add_argument(
        "--view",
        choices=VIEWS,
        default=VIEWS[0],
        help="what the encoder gets: the photograph's central square, or that square of it which shows the scene",
    )
    parser.add_argument("--picture", metavar="NAME", help="the picture of the run that all photographs show")
    parser.add_argument(
        "--quad",
        metavar="FILE|X,Y,...",
        help="the patch's corners in pixels of a photograph, upper left first, clockwise: eight numbers, or a JSON "
        'file {"photograph.jpg": [[x, y], ...]}',
    )
    parser.add_argument("--device", default="auto", help="where the encoder runs (default: auto)")
    parser.add_argument(
        "--encoder-code",
        dest="program",
        metavar="MODEL",
        help=f"run this program, where it is the run's encoder ({', '.join(PROGRAMS)}): name it as the run did",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/photos)")
    return exit_code(lambda: run(parser.parse_args(arguments)), failed=2, errors=(FloatingPointError,))


def run(options: argparse.Namespace) -> None:
    """Score, write, and print the table."""
    scored = score_photos(**vars(options))
    print_notes(scored.notes)
    print(table(scored.content))
    print(f"written: {scored.folder}; a second patch: python -m attacks.run config={scored.folder / 'preset.yaml'}")


if __name__ == "__main__":
    sys.exit(main())
