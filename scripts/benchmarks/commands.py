"""How long things take, what they need, and how good they are, as ratios within one run.

    python scripts/benchmark.py transforms     # the fused geometry against grid_sample, kornia and torchvision
    python scripts/benchmark.py antialias      # ways to shrink: error against an ideal camera, and time
    python scripts/benchmark.py engine         # the gradient of an EOT step: this engine, a loop by hand, the peers
    python scripts/benchmark.py memory         # memory and time of a step against the number of views
    python scripts/benchmark.py precision      # whether a lower precision weakens the attack, picture by picture
    python scripts/benchmark.py estimator      # how near a few views come to the expected gradient, by sampler
    python scripts/benchmark.py strength       # how low each attack brings the cosine, gradient for gradient
    python scripts/benchmark.py patch          # a patch that lies anywhere, ours and ART's: strength, and time a view
    python scripts/benchmark.py curves         # how a patch's success falls with its area and with distance
    python scripts/benchmark.py ledger         # what a second process on the same run is worth

Contestants take turns, round by round, and medians are compared: a noisy machine disturbs all of them alike. With
`--out DIR`, the figures and the machine go to DIR/NAME.json and a picture of them to DIR/NAME.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import (
    antialias,
    engine,
    estimator,
    ledger,
    machine,
    memory,
    patch,
    patch_curves,
    patch_speed,
    precision,
    strength,
    transforms,
)
from .case import ENCODERS, SIZE
from .table import Table, save


def parser() -> argparse.ArgumentParser:
    """One subcommand a benchmark, with the arguments that it takes."""
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(dest="benchmark", required=True)

    def add(name: str, what: str, rounds: int | None = 15) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=what, description=what)
        if rounds is not None:
            command.add_argument("--rounds", type=positive, default=rounds, help="repeats; %(default)s")
        command.add_argument("--threads", type=positive, help="of torch; all cores by default")
        command.add_argument("--out", type=Path, help="folder for the figures and the picture; none by default")
        command.set_defaults(device="cpu", one=None)
        return command

    def on_device(command: argparse.ArgumentParser, archs: Sequence[str] = ()) -> None:
        command.add_argument("--device", default="cpu", help="cpu or cuda")
        if archs:
            command.add_argument("--arch", nargs="+", choices=ENCODERS, default=archs, help="encoders")
            command.add_argument("--one", help=argparse.SUPPRESS)  # a part of the work, in a process of its own

    add("transforms", "the fused geometry against grid_sample, kornia and torchvision")
    add("antialias", "ways to shrink: error against an ideal camera, and time")
    command = add("engine", "milliseconds and memory a view: this engine, a loop by hand, and the peers")
    on_device(command, ("resnet18", "resnet50"))
    command.add_argument("--views", type=positive, default=16, help="of a step; %(default)s")
    command.add_argument("--decision", help=argparse.SUPPRESS)
    command = add("memory", "memory and time of a step against the number of views", rounds=5)
    on_device(command, ("pocket",))
    command.add_argument("--views", type=positive, nargs="+", default=memory.VIEWS, help="numbers to try")
    command = add("precision", "strength of the attack in each precision, paired by picture")
    on_device(command, ("resnet18",))
    command.add_argument("--pictures", type=positive, default=30, help="%(default)s")
    command.add_argument("--size", type=positive, default=SIZE, help="of a picture; %(default)s")
    command = add("estimator", "cosine and squared error of the gradient by sampler and number of views")
    on_device(command)
    command.add_argument("--reference", type=positive, default=estimator.REFERENCE, help="views; %(default)s")
    command = add("strength", "the cosine that each attack reaches with the same number of gradients")
    on_device(command, ("pocket", "resnet18"))
    command.add_argument("--pictures", type=positive, default=50, help="%(default)s")
    command.add_argument("--evals", type=positive, nargs="+", default=(256, 1024), help="gradients of each picture")
    command.add_argument("--eps", type=positive, nargs="*", default=(4, 8), help="radii in 255ths")
    command.add_argument("--no-patch", action="store_true", help="leave out the patch")
    command.add_argument("--held-out", type=positive, default=512, help="views that judge; %(default)s")
    command.add_argument("--workers", type=positive, default=1, help="processes; the figures do not depend on them")
    command.set_defaults(threads=1)
    command = add("patch", "a patch that lies anywhere, ours and ART's: success, cosine, milliseconds a view")
    command.add_argument("--evals", type=positive, default=64, help="gradients of each scene; %(default)s")
    command.add_argument("--groups", type=positive, default=6, help="of scenes, a patch for each; %(default)s")
    command.add_argument("--held-out", type=positive, default=64, help="views of a scene that judge; %(default)s")
    command.set_defaults(threads=1)
    on_device(command)
    command = add("curves", "success of a patch against its area and against distance", rounds=None)
    command.add_argument("--pictures", type=positive, default=2, help="%(default)s")
    command.add_argument("--targets", type=positive, default=2, help="of each picture; %(default)s")
    command.add_argument("--evals", type=positive, default=1600, help="gradients of an attack; %(default)s")
    command.add_argument("--held-out", type=positive, default=128, help="views that judge; %(default)s")
    command.add_argument("--workers", type=positive, default=1, help="processes; the figures do not depend on them")
    command.set_defaults(threads=1)
    command = add("ledger", "the same pictures by one process and by two that share a ledger", rounds=3)
    command.add_argument("--pictures", type=positive, default=64, help="%(default)s")
    command.add_argument("--unit", type=positive, default=2, help="pictures that are claimed at a time; %(default)s")
    return whole


def positive(text: str) -> int:
    """A whole number, at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


#: Name -> from arguments to tables.
BENCHMARKS: dict[str, Callable[[argparse.Namespace], list[Table]]] = {
    "transforms": lambda options: transforms.run(options.rounds),
    "antialias": lambda options: antialias.run(options.rounds),
    "engine": lambda options: engine.run(options.rounds, options.arch, options.views, options.device),
    "memory": lambda options: memory.run(options.rounds, options.arch, options.device, options.views),
    "precision": lambda options: precision.run(options.pictures, options.arch, options.device, options.size),
    "estimator": lambda options: estimator.run(options.rounds, options.reference, options.device),
    "strength": lambda options: strength.run(
        options.arch,
        options.pictures,
        options.evals,
        [*options.eps, *([] if options.no_patch else [None])],
        options.held_out,
        options.device,
        options.workers,
    ),
    "patch": lambda options: [
        *patch.run(options.evals, options.groups, options.held_out),
        patch_speed.run(options.rounds, options.device),
    ],
    "curves": lambda options: patch_curves.run(
        options.pictures, options.targets, options.evals, options.held_out, options.workers
    ),
    "ledger": lambda options: ledger.run(options.rounds, options.pictures, options.unit),
}


def main() -> None:
    options = parser().parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.one and options.benchmark == "memory":
        print(memory.one(options.arch[0], options.device, int(options.one)))
        return
    if options.one:
        print(engine.one(options.one, options.arch[0], options.views, options.device, options.decision))
        return
    tables = BENCHMARKS[options.benchmark](options)
    print("\n\n".join(map(str, tables)))
    if options.out:
        save(tables, options.benchmark, options.out, machine.describe(options.device))
