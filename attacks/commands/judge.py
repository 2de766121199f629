"""Does an attack transfer? Finished runs judged on other encoders, in other views, and on other pictures.

    viewproof judge outputs/run --on torchvision:resnet18 --on model.onnx
    viewproof judge outputs/a outputs/b outputs/c     # of three runs, each on the encoders of all
    viewproof judge outputs/run --on 'timm:resnet50.a1_in1k defence=jpeg' --views camera
    viewproof judge outputs/universal_* --data my/pictures # shared perturbations, or patches, compared

Prints a row for each run and encoder, and writes transfer.csv and transfer.png: the success of the attack without EOT
and with it, with 95 % intervals over clusters. The encoder of a run is judged again, too. `--on` takes what
`viewproof check` takes, and more words of `viewproof run` about the encoder. `--data` takes what `data.path` takes;
its pictures are cut to the size of the runs' and are the gallery. Those that a run was made from are left out.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from torch import nn

from attacks.experiment.directory import open_run, refuse_program
from attacks.experiment.result import read_result
from attacks.experiment.transfer import Transfer, eot_gains, is_loadable, judge_on, transfer_rows
from attacks.inference.pairs import SignFlipTest
from attacks.report.transfer import transfer_figure
from attacks.report.words import interval_text, p_value
from attacks.runtime.files import atomic
from attacks.runtime.tables import write_rows
from attacks.runtime.untrusted import refuse_file
from attacks.schema.composition import compose, words
from attacks.schema.encoder_word import encoder_keys
from attacks.schema.validate import Run

#: The groups of the words that `--on` may add; and the cell of an arm that a run lacks.
GROUPS, DASH = ("encoder", "defence"), p_value(None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the directory of a finished run")
    parser.add_argument("--on", action="append", default=[], metavar="ENCODER", help="another encoder; several times")
    parser.add_argument("--views", metavar="NAME", help="other views: transforms=NAME (default: those of each run)")
    parser.add_argument("--data", metavar="PATH", help="judge perturbations that pictures share on these pictures")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where to write (default: here)")


def run(options: argparse.Namespace) -> None:
    """Judge, print the table, and write it with its picture."""
    refuse_file(options.out, "--out")
    runs = [open_run(folder) for folder in options.runs]
    results = [] if options.data is None else [read_result(folder, shared=True) for folder in options.runs]
    if len(sizes := {result.run.data.size for result in results}) > 1:
        raise ValueError(f"`--data` needs runs of one data.size, which cut the same pictures; got {sorted(sizes)}")
    exclusions = {digest for result in results for digest in result.fit_pixels}
    views = None if options.views is None else compose("smoke", words({"transforms": options.views})).transforms
    encoders = [(text, encoder_run(text)) for text in options.on]
    chosen_encoders = [node.encoder for _, node in encoders]  # behind another defence, too
    encoders += [(str(previous.folder), previous.run) for previous, _ in runs if is_loadable(previous.run)]
    settings = [(node.encoder, node.defence) for _, node in encoders]
    encoders = [row for i, row in enumerate(encoders) if settings[i] not in settings[:i]]
    for _, node in encoders:
        if node.encoder not in chosen_encoders:
            refuse_program(node, None, f"--on '{node.encoder.name}:{getattr(node.encoder, 'model', None)}'")
    columns: list[list[Transfer]] = []
    for text, node in encoders:
        column, modules = list[Transfer](), dict[str, nn.Module]()
        for (previous, content), result in zip_longest(runs, results):
            print(f"judging {previous.folder} on the encoder of {text}", file=sys.stderr)
            data = previous.run.data if result is None else result.pictures_at(options.data)
            test = replace(previous.run, encoder=node.encoder, defence=node.defence, data=data)
            test.transforms = views or test.transforms
            column.append(judge_on(previous, content, test, modules, result, exclusions))
        columns.append(column)
    transfers = [item for row in zip(*columns, strict=True) for item in row]
    tests = eot_gains(transfers)
    rows = transfer_rows(transfers, tests)
    options.out.mkdir(parents=True, exist_ok=True)
    write_rows(options.out / "transfer.csv", rows)
    with atomic(options.out / "transfer.png") as temporary:
        transfer_figure(rows).savefig(temporary, format="png", dpi=150, metadata={"Software": None})
    print("\n".join(_lines(transfers, tests)))
    print(f"table: {options.out / 'transfer.csv'}\npicture: {options.out / 'transfer.png'}")


def encoder_run(text: str) -> Run:
    """The configuration that a word of `--on` names. Raises ValueError in one line."""
    name, *keys = shlex.split(text) or [""]
    for word in keys:
        if word.partition("=")[0].partition(".")[0] not in GROUPS:
            raise ValueError(f"`--on` takes an encoder and words of {' and '.join(GROUPS)}; got {word}")
    return compose("smoke", [*words(encoder_keys(name)), *keys])


def _lines(transfers: Sequence[Transfer], tests: Sequence[SignFlipTest | None]) -> list[str]:
    """The table of the terminal."""
    table: list[tuple[str, ...]] = [("made on", "judged on", "clean", "without EOT", "with EOT", "gain by EOT", "p")]
    for item, test in zip(transfers, tests, strict=True):
        cells = (item.arms.get(arm) for arm in ("clean", "no_eot", "eot"))
        shares = [DASH if cell is None else interval_text(cell.to_dict()["success"]) for cell in cells]
        gain = DASH if test is None else interval_text(test.difference._asdict(), sign="+")
        table.append((item.made_on, item.judged_on, *shares, gain, p_value(test and test.p, test and test.needed)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
