"""Lay the perturbation of a finished run onto other pictures: one that pictures share, or a patch.

    viewproof apply outputs/universal my/pictures --out attacked
    viewproof judge outputs/universal --data my/pictures     # and how well it works there

PICTURES is what `data.path` takes, and they are cut to the run's squares, as `data=folder` cuts them. Writes a PNG of
8 bits for each, as the run does, within its eps.
"""

import argparse
from pathlib import Path

from attacks.data.images import file_names, save_image
from attacks.experiment.result import read_result
from attacks.runtime.command_line import print_notes
from attacks.runtime.untrusted import refuse_file
from attacks.study.data import data


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
    result = read_result(options.run, shared=True)
    if options.arm not in result.deltas:
        raise ValueError(f"`--arm` must be one of {', '.join(result.deltas)}; got {options.arm!r}")
    node = result.pictures_at(options.pictures)
    pictures, _, _ = data(node, result.run.perturbation, has_gallery=False)
    perturbation, delta = result.lay(options.arm, pictures, "cpu")
    images = perturbation.written(pictures.images, delta)
    out.mkdir(parents=True, exist_ok=True)
    for name, image in zip(file_names(pictures.names), images, strict=True):
        save_image(out / name, image)
    print_notes(pictures.notes)
    size, source = f"{node.size} x {node.size}", f"{options.run}, eps {perturbation.eps:g}"
    print(f"written: {out}, {len(images)} pictures of {size} with the perturbation {options.arm} of {source}")
