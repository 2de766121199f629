"""Photographs of a run's printed card in its scenes, simulated: the physical loop without a printer.

    python scripts/print_patch.py outputs/my_patch
    python scripts/simulate_photos.py outputs/my_patch photos --count 200
    python scripts/score_photos.py outputs/my_patch photos

`photos/truth.json` tells where everything is in each photograph, and every value that was drawn. The surroundings are
as soft as the run's pictures are small. Made with numpy and OpenCV only: it is an independent check of `transforms`.

An option of two numbers is a range, LOW HIGH. One number x is that value; where values have a sign, it is -x..x.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

#: The ranges that a user has reason to change.
OPTIONS = {
    "degrees": "rotation",
    "scale": "magnification",
    "shift": "right and down, shares of the shorter side",
    "yaw": "degrees that the scene turns about the vertical axis, before a pinhole (then --jitter is 0 if not given)",
    "pitch": "degrees that it leans back (likewise)",
    "distance": "of the pinhole; 2 shows the scene half as large",
    "stops": "exposure",
    "blur": "sigma in pixels",
    "motion": "blur's length in pixels",
    "quality": "of the JPEG file",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, printed by print_patch.py")
    parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    parser.add_argument("--count", type=int, default=200, help="number of photographs (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="1280x960", metavar="WxH", help="of a photograph (default: 1280x960)")
    parser.add_argument("--ink", type=float, default=1.0, help="0: an ideal printer, 1: a generic one (default: 1)")
    parser.add_argument(
        "--jitter", type=float, help="most that a corner moves, share of half the side (default: 0.15)"
    )
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", type=float, nargs="+", metavar="X", help=text)
    return parser.parse_args(arguments)


def size_of(text: str) -> tuple[int, int]:
    """`1280x960` -> (height, width)."""
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise ValueError(f"`--size` must be WIDTHxHEIGHT in pixels, such as 1280x960; got {text!r}")
    return int(height), int(width)


def range_of(name: str, given: list[float], signed: bool) -> tuple[float, float]:
    if len(given) > 2:
        raise ValueError(f"`--{name}` takes one number, or LOW HIGH; got {len(given)} numbers")
    return (-abs(given[0]), abs(given[0])) if len(given) == 1 and signed else (given[0], given[-1])


def main(arguments: list[str] | None = None) -> int:
    """Write the photographs. Returns the exit status: 0, or 2 after one line that says what to mend."""
    try:
        given = parsed(arguments)
        from attacks.physical.simulation import Ranges, simulate
        from attacks.physical.simulation.shots import LIMITS

        asked = {name: getattr(given, name) for name in OPTIONS if getattr(given, name) is not None}
        ranges = {name: range_of(name, value, LIMITS[name][0] < 0) for name, value in asked.items()}
        tilted = "yaw" in asked or "pitch" in asked
        jitter = given.jitter if given.jitter is not None else 0.0 if tilted else Ranges.jitter
        size = size_of(given.size)
        files = simulate(
            given.run, given.out, given.count, given.seed, size, Ranges(jitter=jitter, **ranges), given.ink
        )
        print(f"{len(files)} photographs and truth.json in {given.out}")
    except ImportError as error:
        print(f'error: cv2 cannot be imported ({error}): pip install "viewproof[physical]"', file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
