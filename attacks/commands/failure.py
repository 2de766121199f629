"""How probable a failure is over all views of a picture, down to one in a million and less.

    viewproof failure outputs/my_run
    viewproof failure outputs/my_run --arm eot --pictures 5 --out outputs/failure

For each picture of a finished run: the probability that the encoder takes a view of the untouched picture for
something else (--arm clean), or that the attack fails in a view of the attacked one (--arm eot), with a 95 %
interval. Where no failure is found, an upper limit. --out writes failure.csv, with the physical values of the view
that fails most, and views.png, the views that fail most.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks.commands.show import save, sheet
from attacks.eot.bank import Bank
from attacks.evaluation.failure import Arm, score_of
from attacks.evaluation.splitting import Estimate, rare
from attacks.experiment.batch import SAME, Bench
from attacks.experiment.directory import PROGRAMS
from attacks.experiment.reopened import reopened
from attacks.runtime.command_line import printable
from attacks.runtime.tables import write_rows

#: The fewest particles; fewer lose parts of the failures.
FEWEST = 50
#: Views in the picture of --out.
SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run")
    parser.add_argument("--arm", choices=["clean", "eot"], default="clean", help="whose failure (default: clean)")
    parser.add_argument("--pictures", type=int, metavar="N", help="only the first N pictures")
    parser.add_argument(
        "--particles", type=int, default=1000, help="of the search (default: 1000); about 100 views each"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write failure.csv and views.png there")
    parser.add_argument("--device", help="where the encoder runs (default: where the run had it)")
    parser.add_argument(
        "--encoder-code",
        metavar="MODEL",
        help=f"run this program, where it is the run's encoder ({', '.join(PROGRAMS)}): name it as the run did",
    )


@dataclass(frozen=True)
class PictureFailure:
    """A picture of a run with the estimate for one arm, and the physical values of the view that fails most."""

    picture: str
    cluster: str
    arm: Arm
    estimate: Estimate
    values: dict[str, float]

    def __str__(self) -> str:
        estimate = self.estimate
        if not estimate.p:
            found = f"no failure found: p <= {estimate.high:.2g} at 95 %"
        else:
            found = f"p {estimate.p:.2g} [{estimate.low:.2g}, {estimate.high:.2g}]"
        return f"{self.picture} {self.arm}: {found}, {estimate.passes} views ({estimate.method})"

    def row(self) -> dict[str, object]:
        """A row of failure.csv; the values of the coordinates have their names."""
        estimate = self.estimate
        head: dict[str, object] = {"picture": self.picture, "cluster": self.cluster, "arm": self.arm, "p": estimate.p}
        head |= {"low": estimate.low, "high": estimate.high, "worth": estimate.worth, "views": estimate.passes}
        return head | {"method": estimate.method, **self.values}


def run(options: argparse.Namespace) -> None:
    """Print a line for each picture, and write --out. Raises ValueError or OSError."""
    if options.particles < FEWEST:
        raise ValueError(f"`--particles` must be at least {FEWEST}; got {options.particles}")
    if options.pictures is not None and options.pictures < 1:
        raise ValueError(f"`--pictures` must be at least 1; got {options.pictures}")
    bench = reopened(options.run, options.encoder_code, options.device)
    if not bench.parts.transforms.dims:
        raise ValueError("`RUN` has no views: its transforms have no coordinates, so every view is the same")
    failures, pictures = [], list[Tensor]()
    for row in range(len(bench.parts.queries))[: options.pictures]:
        failure = failure_of(bench, row, options.arm, options.particles, options.seed)
        failures.append(failure)
        print(printable(str(failure)), flush=True)
        if options.out is not None and len(failure.estimate.worst):
            pictures.append(view_of(bench, row, options.arm, failure.estimate.worst[0]))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_rows(options.out / "failure.csv", [failure.row() for failure in failures])
        _draw(options.out / "views.png", failures, pictures)
        print(f"written: {options.out / 'failure.csv'}")


def failure_of(bench: Bench, row: int, arm: Arm, particles: int, seed: int) -> PictureFailure:
    """The failure probability of the picture with that number."""
    views = bench.banks[SAME].transforms
    score = score_of(bench.judge, bench.exhibits.shown(arm, [row]), row, views, arm)
    estimate = rare(score, views.dims, particles, seed)
    queries, values = bench.parts.queries, dict[str, float]()
    if len(estimate.worst):
        physical = views.values(torch.from_numpy(np.ascontiguousarray(estimate.worst[:1])).float())[0].tolist()
        values = dict(zip(views.names, physical, strict=True))
    return PictureFailure(queries.names[row], queries.clusters[row], arm, estimate, values)


@torch.no_grad()
def view_of(bench: Bench, row: int, arm: Arm, u: np.ndarray) -> Tensor:
    """The view (3,h,w) of a picture at one point of the cube."""
    bank = bench.banks[SAME]
    points = torch.from_numpy(u[None]).to(bank.u)
    return Bank(bank.transforms, points).transforms(bench.exhibits.shown(arm, [row]), points)[0].cpu()


def _draw(path: Path, failures: list[PictureFailure], views: list[Tensor]) -> None:
    shown = [failure for failure in failures if len(failure.estimate.worst)]
    pairs = sorted(zip(shown, views, strict=True), key=lambda pair: -pair[0].estimate.p)[:SHOWN]
    if not pairs:
        return
    names = ["picture", "p", *pairs[0][0].values]
    values = [
        [each.picture, f"{each.estimate.p:.2g}", *(f"{x:.3g}" for x in each.values.values())] for each, _ in pairs
    ]
    blank = torch.ones(3, 1, 1)
    save(sheet(blank, [view for _, view in pairs], names, values, min(6, len(pairs))), path)
