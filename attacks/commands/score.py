"""Score photographs of a run's printed patch: the same encoder, gallery and measures as the run's own views.

    viewproof print outputs/my_patch          # print, cut out, lay into the scene, photograph
    viewproof score outputs/my_patch photos

A photograph is assigned to a picture of the run by the beginning of its name, as in street--03.jpg, or by its
subfolder; if there is only one picture, to that. One that does not show the patch of this run and arm in its scene is
named with the reason, and left out (docs/photographs_left_out.md). Writes photos.json, photos.csv, overview.png,
rectified/, and, where the colour chart could be read, colour.json. `viewproof run config=RUN/photos/preset.yaml`
makes a second patch for that printer and for the poses that were photographed.
"""

import argparse
from pathlib import Path

from attacks.commands import add_encoder
from attacks.physical.photo_report import photo_table
from attacks.physical.scoring import score_photos
from attacks.physical.sheet import ARMS
from attacks.runtime.command_line import print_notes
from attacks.runtime.untrusted import refuse_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run with perturbation=patch")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="a folder of photographs")
    parser.add_argument("--arm", choices=ARMS, default=ARMS[0], help="of the run, whose print it is (default: eot)")
    parser.add_argument("--picture", metavar="NAME", help="the picture of the run that all photographs show")
    add_encoder(parser, "auto", dest="program")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/photos)")


def run(options: argparse.Namespace) -> None:
    refuse_file(options.out, "--out")
    content = score_photos(**vars(options))
    print_notes(content.notes)
    print(photo_table(content.content))
    print(f"written: {content.folder}; a second patch: viewproof run config={content.folder / 'preset.yaml'}")
