"""What no change of a picture up to some length can undo, behind Gaussian smoothing, beside what an attack undoes.

    viewproof certify outputs/my_run --samples 100000 --radii 0.25 0.5 --out outputs/certificate

For pictures of a finished run with defence=smooth, without a camera: a lower bound of the similarity to the clean
picture, and whether the nearest row of the gallery stays right, at L2 lengths of pixels in [0,1]; and what the run's
attack leaves at the same lengths (docs/certificate.md). A bound above what was found is an error of this program, and
fails the command. --out writes certificate.csv and certificate.png.
"""

import argparse
from pathlib import Path

import torch

from attacks.commands import add_encoder
from attacks.evaluation.certificate import Certifier, certified_figures, smoothing
from attacks.experiment.preparation import reopen
from attacks.experiment.sections.section import sample_of
from attacks.report.panels import draw_certificate
from attacks.report.words import interval_text
from attacks.runtime.progress import Progress
from attacks.runtime.tables import write_rows
from attacks.runtime.untrusted import refuse_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a finished run with defence=smooth")
    parser.add_argument("--pictures", type=int, metavar="N", help="N, spread over the clusters (default: all)")
    parser.add_argument("--samples", type=int, default=10_000, help="of a picture's noise (default: 10000)")
    parser.add_argument("--radii", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="(default: 0.25 0.5 1)")
    parser.add_argument("--alpha", type=float, default=0.001, help="error of a picture's bounds (default: 0.001)")
    text = "the least cosine of features, 0 where none is negative (default: -1)"
    parser.add_argument("--lowest", type=float, default=-1.0, help=text)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write certificate.csv and certificate.png there")
    add_encoder(parser)


def run(options: argparse.Namespace) -> None:
    for name, low, high in (("pictures", 1, 1e9), ("samples", 100, 1e9), ("radii", 1e-6, 1e6), ("alpha", 1e-12, 0.5)):
        value = getattr(options, name)
        values = value if name == "radii" else [low if value is None else value]
        if not all(low <= number <= high for number in values):
            raise ValueError(f"`--{name}` must be {low:g} to {high:g}; got {value}")
    refuse_file(options.out, "--out")
    bench = reopen(options.run, options.encoder_code, options.device)
    study, judge, table = bench.study, bench.judge, []
    settings = (options.samples, options.alpha, options.lowest, study.seed)
    certifier = Certifier(*smoothing(study.encoder), sorted({*options.radii}), *settings)
    sample = sample_of(bench, study.queries.judged, options.pictures or len(study.queries))
    with Progress("certify", len(sample.names) * certifier.passes) as progress:
        for row, name, cluster in zip(sample.rows.tolist(), sample.names, sample.clusters, strict=True):
            clean, image = (bench.exhibits.pictures(arm, [row]) for arm in ("clean", "eot"))
            matches = judge.known.same(torch.arange(len(judge.embeddings)), judge.truth[row])
            gallery = judge.embeddings[judge.truth[row]], judge.embeddings[~matches]
            rows = certifier.rows(clean, image - clean, judge.own[row], gallery, progress.step)
            table += [{"picture": name, "cluster": cluster, **line} for line in rows]
    title = f"sigma {certifier.deviation:g}, {options.samples:,} samples, alpha {options.alpha:g}; 95 % over clusters"
    wrong = [f"{line['picture']} at radius {line['radius']:g}" for line in table if line["wrong"]]
    count = f"{len(wrong)} of {len(table)} floors above what was found, an error of this program"
    error = f"WRONG: {count}: {', '.join(wrong[:3])}" if wrong else ""
    for radius, figures in certified_figures(table).items():
        texts = [interval_text(value._asdict()) for value in figures]
        line = "similarity at least {}, found {}; nearest row certainly right {}, found right {}".format(*texts)
        print(f"radius {radius:g}: {line}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_rows(options.out / "certificate.csv", table)
        draw_certificate(options.out / "certificate.png", table, error or title)
    if error:
        raise RuntimeError(error)
