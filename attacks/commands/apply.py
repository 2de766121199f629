"""Lay the perturbation of a finished run onto other pictures: one that pictures share, or a patch.

    viewproof apply outputs/universal my/pictures --out attacked
    viewproof judge outputs/universal --data my/pictures     # and how well it works there

PICTURES is what `data.path` takes, and they are cut to the run's squares, as `data=folder` cuts them. Writes a PNG of
8 bits for each, as the run does, within its eps.
"""

import argparse
from pathlib import Path

from attacks.data.images import file_names, save_image
from attacks.experiment.result import shared_result
from attacks.report.facts import encoder_name
from attacks.report.words import radius
from attacks.runtime.command_line import print_notes
from attacks.runtime.untrusted import refuse_file
from attacks.study.data import data
from attacks.study.perturbation import perturb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run")
    parser.add_argument("pictures", metavar="PICTURES", help="a picture, folder or list; scenes for a run of scenes")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new or empty folder")
    parser.add_argument("--arm", default="eot", help="of the run, whose perturbation it is (default: eot)")


def run(options: argparse.Namespace) -> None:
    """Write the attacked pictures, and say what they are."""
    out: Path = options.out
    refuse_file(out, "--out")
    if out.is_dir() and (names := sorted(path.name for path in out.iterdir())):
        raise ValueError(f"`--out` must be a new or empty folder; {out} holds {names[0]}: name another")
    result = shared_result(options.run)
    if options.arm not in result.deltas:
        raise ValueError(f"`--arm` must be one of {', '.join(result.deltas)}; got {options.arm!r}")
    node = result.pictures_at(options.pictures)
    pictures, _, _ = data(node, result.run.perturbation, has_gallery=False)
    perturbation = perturb(result.run, pictures.images, pictures.placements).for_arm(options.arm)
    delta = perturbation.quantise(result.deltas[options.arm], pictures.images)
    images = perturbation.written(pictures.images, delta)
    out.mkdir(parents=True, exist_ok=True)
    for name, image in zip(file_names(pictures.names), images, strict=True):
        save_image(out / name, image)
    print_notes(pictures.notes)
    threat = result.content["threat"]
    text = "a patch" if threat["patch"] else f"{threat['norm']}, eps {radius(threat)}"
    print(
        f"written: {out}, {len(images)} pictures of {node.size} x {node.size} with {options.arm} of {options.run} "
        f"({text}; made on {encoder_name(result.content)}; sha256 {result.digest[:12]})"
    )
