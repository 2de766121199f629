"""How probable a failure is over all views of a picture, down to one in a million and less.

    viewproof failure outputs/my_run
    viewproof failure outputs/my_run --arm eot --pictures 5 --out outputs/failure

For each picture of a finished run: the probability that the encoder takes a view of the untouched picture for
something else (--arm clean), or that the attack fails in a view of the attacked one (--arm eot), with a 95 %
interval, or an upper limit. --out writes failure.csv and failure.png, the views that fail most; their
physical values are in failure.csv. The key `evaluate.failure` makes the same a part of a run.
"""

import argparse
from pathlib import Path

from attacks.commands import add_encoder
from attacks.evaluation.rare.failure import ARMS
from attacks.experiment.preparation import reopen
from attacks.experiment.sections.judged import failure_of
from attacks.experiment.sections.section import sample_of
from attacks.report.sheets import draw_failures
from attacks.runtime.command_line import printable
from attacks.runtime.tables import write_rows
from attacks.runtime.untrusted import refuse_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run")
    parser.add_argument("--arm", choices=ARMS, default="clean", help="whose failure (default: clean)")
    parser.add_argument("--pictures", type=int, metavar="N", help="N, spread over the clusters (default: all)")
    parser.add_argument("--particles", type=int, default=1000, help="of the search (1000); about 100 views each")
    parser.add_argument("--seed", type=int, help="of the draws (default: that of the run)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write failure.csv and failure.png there")
    add_encoder(parser)


def run(options: argparse.Namespace) -> None:
    for name, least in (("particles", 50), ("pictures", 1)):  # fewer particles lose parts of the failures
        if (value := getattr(options, name)) is not None and value < least:
            raise ValueError(f"`--{name}` must be at least {least}; got {value}")
    refuse_file(options.out, "--out")
    bench = reopen(options.run, options.encoder_code, options.device)
    seed = bench.study.seed if options.seed is None else options.seed
    if not bench.study.transforms.dims:
        raise ValueError("`RUN` has no views: its transforms have no coordinates, so every view is the same")
    failures, judged = [], bench.study.queries.judged
    for row in sample_of(bench, judged, options.pictures or len(judged)).rows.tolist():
        failures.append(failure_of(bench, row, options.arm, options.particles, seed))
        print(printable(str(failures[-1])), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_rows(options.out / "failure.csv", [failure.row() for failure in failures])
        draw_failures(options.out / "failure.png", failures)
        print(f"written: {options.out / 'failure.csv'}")
