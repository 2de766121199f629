"""Photographs of a run's printed card in its scenes, simulated: the physical loop without a printer.

    viewproof print outputs/my_patch
    viewproof simulate outputs/my_patch photos --count 200
    viewproof score outputs/my_patch photos

`photos/truth.json` holds the position of everything in each photograph, and every value drawn. The surroundings are
as blurred as the run's pictures are small. Made with numpy and OpenCV only: an independent check of `transforms`.

An option of two numbers is a range, LOW HIGH. One number x is that value; where values have a sign, it is -x..x.
"""

import argparse
from dataclasses import fields, replace
from pathlib import Path

from attacks.physical.simulation.shots import LIMITS, MEDIA, PRESETS, Ranges
from attacks.runtime.extras import extra

#: The ranges that a user has reason to change.
OPTIONS = ("degrees", "scale", "shift", "yaw", "pitch", "distance", "stops", "blur", "motion", "quality", "k1", "sag")


def _range(name: str, values: list[float], signed: bool) -> tuple[float, float]:
    if len(values) > 2:
        raise ValueError(f"`--{name}` takes one number, or LOW HIGH; got {len(values)} numbers")
    return (-abs(values[0]), abs(values[0])) if len(values) == 1 and signed else (values[0], values[-1])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    meanings = {entry.name: entry.metadata["meaning"] for entry in fields(Ranges)}
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, printed by `viewproof print`")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    parser.add_argument("--count", type=int, default=200, help="number of photographs (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="1280x960", metavar="WxH", help="of a photograph (default: 1280x960)")
    parser.add_argument("--ink", type=float, default=1.0, help="0: an ideal printer, 1: a generic one (default: 1)")
    parser.add_argument("--medium", choices=MEDIA, help="what shows the card (default: the run's printer.medium)")
    ranges = "those that the attack is optimised for; hard: with lens, curl, clutter, glare, an object on the card,"
    ranges += " a telephone's processing (default: kind)"
    parser.add_argument("--ranges", choices=PRESETS, default="kind", help=ranges)
    jitter = f"{meanings['jitter']} (default: 0.15, with --yaw or --pitch 0)"
    parser.add_argument("--jitter", type=float, help=jitter)
    for name in OPTIONS:
        parser.add_argument(f"--{name}", type=float, nargs="+", metavar="X", help=meanings[name])


def run(options: argparse.Namespace) -> None:
    extra("cv2")
    from attacks.physical.simulation.simulate import simulate  # after the check

    width, _, height = options.size.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ValueError(f"`--size` must be WIDTHxHEIGHT in pixels, such as 1280x960; got {options.size!r}")
    values = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    ranges = {name: _range(name, value, LIMITS[name][0] < 0) for name, value in values.items()}
    is_tilted, base = "yaw" in values or "pitch" in values, PRESETS[options.ranges]
    jitter = options.jitter if options.jitter is not None else 0.0 if is_tilted else base.jitter
    rig, size = replace(base, jitter=jitter, **ranges), (int(height), int(width))
    files = simulate(options.run, options.out, options.count, options.seed, size, rig, options.ink, options.medium)
    print(f"{len(files)} photographs and truth.json in {options.out}")
