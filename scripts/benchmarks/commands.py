"""How long things take, what they need, and how good they are, as ratios within one run.

Contestants take turns, round by round, and medians are compared: a noisy machine disturbs all of them alike. With
`--out DIR`, the figures and the machine go to DIR/NAME.json.
"""

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path

import torch

from attacks.encoders.engine.precision import allow_tf32

from . import cards, engine, memory, next_patch, rare, steps, strength, verdict, zoo
from .case import ENCODERS
from .table import BenchmarkTable, machine, save_tables

#: Name -> benchmark. Its keyword arguments are the options, its docstring's first paragraph says what it measures.
BENCHMARKS: dict[str, Callable[..., list[BenchmarkTable]]] = {
    "engine": engine.run,
    "steps": steps.run,
    "memory": memory.run,
    "strength": strength.run,
    "verdict": verdict.run,
    "rare": rare.run,
    "zoo": zoo.run,
    "cards": cards.run,
    "next": next_patch.run,
}
#: Those that run on one thread unless `--threads` is given.
ONE_THREAD = ("strength", "verdict", "rare", "zoo", "cards", "next")
HELP = {
    "arch": "encoders",
    "device": "cpu or cuda",
    "gradients": "of each patch",
    "inks": "number of invented inks",
    "calibration": "photographs of the first patch that are scored",
    "poses": "photographs that judge each patch",
    "cells": "of the grid, by name; all",
    "held_out": "views that judge",
    "kind_photos": "of the run's patch as it should be",
    "harder_photos": "of each harder kind",
    "hard_photos": "of the simulator's preset hard",
    "photos": "of each kind",
    "jobs": "folder of finished attacks: a run that was stopped continues",
    "particles": "of a search",
    "pictures": "number of pictures",
    "repeats": "of a cell",
    "rounds": "repeats",
    "seeds": "of each attack",
    "views": "of a step",
    "workers": "processes; the figures do not depend on them",
}


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = root.add_subparsers(dest="benchmark", required=True)
    for name, run in BENCHMARKS.items():
        text = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        shape = argparse.ArgumentDefaultsHelpFormatter
        command = commands.add_parser(name, help=text.replace("%", "%%"), description=text, formatter_class=shape)
        for key, parameter in inspect.signature(run).parameters.items():
            option, default = f"--{key.replace('_', '-')}", parameter.default
            several, first = isinstance(default, tuple), default[0] if isinstance(default, tuple) else default
            command.add_argument(
                option,
                default=default,
                type=positive if isinstance(first, int) else str,
                nargs="+" if several else None,
                choices=ENCODERS if key == "arch" else None,
                help=HELP[key],
            )
        threads = 1 if name in ONE_THREAD else None
        command.add_argument("--threads", type=positive, default=threads, help="of torch; None: all cores")
        command.add_argument("--out", type=Path, help="folder for the figures")
    return root


def positive(text: str) -> int:
    """A whole number, at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def main() -> None:
    options = vars(parser().parse_args())
    name, threads, out = (options.pop(key) for key in ("benchmark", "threads", "out"))
    if threads:
        torch.set_num_threads(threads)
    allow_tf32(False)  # the float32 of the tables is that of a run
    tables = BENCHMARKS[name](**options)
    print("\n\n".join(map(str, tables)))
    if out:
        save_tables(tables, name, out, machine(options.get("device", "cpu")))
