"""Show the view that a run stopped at, stage by stage, to find where a value or a gradient stops being finite.

    viewproof replay outputs/my_run
    viewproof replay outputs/my_run/fault.safetensors --out view.png

Prints a line for each stage: the least and greatest value after it, the number of non-finite values, and the norm of
the loss's gradient there. Steps, views and pictures count from 0.
"""

import argparse
from pathlib import Path

from attacks.data.images import save_image
from attacks.eot.faults import NAME, read_fault
from attacks.eot.faults.fault import Line
from attacks.eot.faults.locate import first_fault


def _fault_file(run: Path) -> Path:
    """The file of the view that a run stopped at. Where pictures have failed one by one, each has its own."""
    if not run.exists():
        raise FileNotFoundError(f"`{run}` does not exist: name the directory of a run, or a {NAME} in it")
    files = sorted(run.glob("fault*.safetensors")) if run.is_dir() else [run]
    if len(files) > 1:
        names = ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
        raise ValueError(f"`{run}` holds {len(files)} views that were not finite; name one of them: {names}")
    return files[0] if files else run / NAME


def _stage_lines(lines: tuple[Line, ...]) -> list[str]:
    rows = [("stage", "least", "greatest", "not finite", "gradient")]
    for line in lines:
        slope = "none" if line.slope is None else f"{line.slope:.6g}"
        rows.append((line.name, f"{line.least:.6g}", f"{line.greatest:.6g}", str(line.bad), slope))
    wide = max(len(row[0]) for row in rows)
    return [f"{name:{wide}}" + "".join(f"  {cell:>12}" for cell in cells) for name, *cells in rows]


def run(options: argparse.Namespace) -> None:
    fault = read_fault(_fault_file(options.run))
    step = "" if fault.step is None else f", step {fault.step}"
    print(f"{fault.doing}{step}, view {fault.view} of image {fault.picture} of its batch")
    for name, value in fault.values.items():
        print(f"  {name}: {value:.6g}")
    print("\n".join(_stage_lines(fault.lines)))
    place = first_fault(fault.lines)
    print(f"NaN or inf begins at {place}" if place else "every value and gradient is finite")
    if options.out is not None:
        save_image(options.out, fault.shown[0].nan_to_num(0, 1, 0).clamp(0, 1))
        print(f"written: {options.out}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help=f"the directory of a run, or a {NAME} in it")
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="write the view")
