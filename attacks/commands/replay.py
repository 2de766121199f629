"""Replay one view of a run, stage by stage, to find where a value or a gradient stops being finite.

    viewproof replay outputs/my_run                                # the view that the run stopped at
    viewproof replay outputs/my_run/fault.safetensors --out view.png
    viewproof replay outputs/my_run --step 12 --view 3 --picture 0 # any view of a finished run

Prints a line for each stage: the least and greatest value after it, the number of non-finite values, and the norm of
the loss's gradient there. Steps, views and pictures count from 0.
"""

import argparse
from pathlib import Path

from attacks.commands import add_encoder
from attacks.data.images import save_image
from attacks.eot.faults import NAME
from attacks.eot.faults.trace import Line, first_fault
from attacks.experiment.replay import Replay, ViewAddress, of_fault, of_run


def _fault_file(run: Path) -> Path:
    """The file of the view that a run stopped at. Where pictures have failed one by one, each has its own."""
    if not run.exists():
        raise FileNotFoundError(f"`{run}` does not exist: name the directory of a run, or a {NAME} in it")
    files = sorted(run.glob("fault*.safetensors")) if run.is_dir() else [run]
    if len(files) > 1:
        names = ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
        raise ValueError(f"`{run}` holds {len(files)} views that were not finite; name one of them: {names}")
    return files[0] if files else run / NAME


def _replay(options: argparse.Namespace) -> Replay:
    """The view that the command line names."""
    numbers = (options.step, options.view, options.picture)
    if numbers == (None, None, None):
        return of_fault(_fault_file(options.run))
    if None in numbers:
        raise ValueError("a view of a finished run needs all of `--step`, `--view` and `--picture`")
    return of_run(options.run, ViewAddress(*numbers), options.device, options.encoder_code)


def _stage_lines(lines: tuple[Line, ...]) -> list[str]:
    """A line for each stage, with a head."""
    rows = [("stage", "least", "greatest", "not finite", "gradient")]
    for line in lines:
        slope = "none" if line.slope is None else f"{line.slope:.6g}"
        rows.append((line.name, f"{line.least:.6g}", f"{line.greatest:.6g}", str(line.bad), slope))
    wide = max(len(row[0]) for row in rows)
    return [f"{name:{wide}}" + "".join(f"  {cell:>12}" for cell in cells) for name, *cells in rows]


def run(options: argparse.Namespace) -> None:
    """Print the view, and write it to `--out`."""
    replay = _replay(options)
    print(replay.title)
    for name, value in replay.values.items():
        print(f"  {name}: {value:.6g}")
    print("\n".join(_stage_lines(replay.lines)))
    place = first_fault(replay.lines)
    print(f"NaN or inf begins at {place}" if place else "every value and gradient is finite")
    for note in replay.notes:
        print(f"note: {note}")
    if options.out is not None:
        save_image(options.out, replay.displayed[0].nan_to_num(0, 1, 0).clamp(0, 1))
        print(f"written: {options.out}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help=f"the directory of a run, or a {NAME} in it")
    parser.add_argument("--step", type=int, help="of a finished run: the step")
    parser.add_argument("--view", type=int, help="the view in it")
    parser.add_argument("--picture", type=int, help="the picture, as numbered in metrics.json")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="write the view")
    add_encoder(parser, "auto")
