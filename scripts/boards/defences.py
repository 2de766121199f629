"""Measure defences that look at several views, on real encoders: docs/defence_table.md.

    python scripts/defence_table.py --page docs/defence_table.md

A row is a run, OUT/ENCODER/DEFENCE-EPS. Its attack through the defence stands beside two that do not see the rule: on
the bare encoder, at equal passes, and on the mean over the defence's views, judged behind the defence. What is
finished is not made again.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from attacks.commands.judge import encoder_run
from attacks.experiment.directory import open_run
from attacks.experiment.transfer import judge_on, transfer_rows
from attacks.run import compose
from attacks.runtime.files import write_text
from attacks.runtime.tables import read_rows, write_rows

from .leaderboard import LOGITS, dense_table, figure_text, named_keys, provenance, read_record, run_cell

EPS = (4, 2, 1)
DEFENCES = ("tte", "rtpt", "dbd", "agc", "smooth", "ttc", "consistency")
#: A vision transformer that is trained in two minutes; its file is a program.
VIT = "vit.pt"
PREPROCESS = "encoder.preprocess={size:64,mean:[0,0,0],std:[1,1,1]}"
#: Encoder -> its words in a run, and those that name it to `judge --on`.
ENCODERS = {
    name: (
        f"encoder=pypi encoder.model={name} {LOGITS} data=folder data.path=imagenet20 data.count=null "
        "engine.layout=channels_last",  # a quarter less time on a CPU
        f"pypi:{name} encoder.output=logits",
    )
    for name in ("lite0", "lite2")
}
ENCODERS["vit"] = (
    f"encoder=torchscript encoder.model={VIT} {PREPROCESS} data.size=64 data.count=20",
    f"torchscript:{VIT} {PREPROCESS}",
)
SETTINGS = "config=quickstart transforms=identity engine=fixed sanity=none evaluate.refine=0 evaluate.one_view=false"
SETTINGS += " evaluate.views=16"
#: Views of a defence, gradients through it, and views of a step.
VIEWS, GRADIENTS, STEP = 4, 24, 1
HEAD = ("encoder", "defence", "eps", "clean", "undefended", "bare", "its views", "through", "gain", "passes")


def table_options() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("words", nargs="*", metavar="KEY=VALUE", help="of all runs")
    for key, table in (("encoders", ENCODERS), ("defences", DEFENCES), ("eps", [*map(str, EPS)])):
        names = f"all, none, or some of {','.join(table)}"
        root.add_argument(f"--{key}", type=partial(named_keys, table), default="all", help=names)
    root.add_argument("--out", type=Path, default=Path("outputs/defences"), help="run directories (%(default)s)")
    root.add_argument("--page", type=Path, help="file of the page")
    return root


def trace_vit(out: Path) -> None:
    """Train the vision transformer, and write it as a program of TorchScript."""
    if not (out / VIT).exists():
        encoders = importlib.import_module(f"{__package__.rpartition('boards')[0]}benchmarks.strength_encoders")
        network = encoders.trained_network("vit", out).requires_grad_(False)
        torch.jit.save(torch.jit.trace(network, torch.zeros(1, 3, encoders.SIDE, encoders.SIDE)), out / VIT)


def view_stages(defence: str) -> str:
    """The stages of a defence's views, as a word of a run; of one without views none."""
    stages = getattr(compose("quickstart", [f"defence={defence}"]).defence, "stages", {})
    return json.dumps(dict(stages)).replace('"', "")


def words_of(encoder: str, words: str, options: argparse.Namespace) -> list[str]:
    """Those of a run; of two with one key the later counts."""
    texts = [*f"{SETTINGS} {ENCODERS[encoder][0]} {words}".split(), *options.words]
    values = dict(text.split("=", 1) for text in texts)
    return [f"{key}={options.out / VIT if value == VIT else value}" for key, value in values.items()]


def attack_defence(encoder: str, defence: str, eps: str, options: argparse.Namespace) -> bool:
    """The run through a defence, whose files are then judged without it."""
    folder = options.out / encoder / f"{defence}-{eps}"
    views = "" if defence == "ttc" else f"defence.views={VIEWS}"
    words = f"defence={defence} {views} attack.gradients={GRADIENTS} attack.views={STEP} perturbation.eps={eps}/255"
    if done := run_cell(folder, words_of(encoder, words, options)):
        judge_run(folder, encoder, "bare", options)
    return done


def judge_run(
    folder: Path, encoder: str, arm: str, options: argparse.Namespace, defences: Sequence[str] = ()
) -> None:
    """Judge the files of one arm of a run, once, behind the defences given, or without one."""
    if not (folder / "transfer.csv").exists():
        name = ENCODERS[encoder][1].replace(VIT, str(options.out / VIT))
        previous, content = open_run(folder)
        content = {**content, "arms": {arm: content["arms"][arm]}}
        views = compose("smoke", ["transforms=identity"]).transforms
        transfers = []
        for words in [f"defence={defence} defence.views={VIEWS}" for defence in defences] or [""]:
            named = encoder_run(f"{name} {words}")
            run = replace(previous.run, encoder=named.encoder, defence=named.defence, transforms=views)
            transfers.append(judge_on(previous, content, run, {}))
        write_rows(folder / "transfer.csv", transfer_rows(transfers, [None] * len(transfers)))


def attack_views(encoder: str, eps: str, options: argparse.Namespace) -> bool:
    """The runs on the views of defences, without their rules, judged behind the defences: a run serves all that have
    the same views."""
    by_stages: dict[str, list[str]] = {}
    for defence in options.defences:
        if defence == "consistency":  # a detector changes no answer
            continue
        by_stages.setdefault(view_stages(defence), []).append(defence)
    by_stages.pop("{}", None)  # what looks at one picture has no views
    results = []
    for stages, defences in by_stages.items():
        folder = options.out / encoder / f"views of {defences[0]}-{eps}"
        words = f"attack.gradients={GRADIENTS * (1 + VIEWS)} attack.views={1 + VIEWS} perturbation.eps={eps}/255"
        results.append(run_cell(folder, [*words_of(encoder, words, options), f"+transforms.stages={stages}"]))
        if results[-1]:
            judge_run(folder, encoder, "eot", options, defences)
    return all(results)


def table_row(folder: Path) -> list[str]:
    """The cells of a line of the table, from the directory of a run through a defence."""
    content, encoder = read_record(folder / "metrics.json"), folder.parent.name
    defence, _, eps = folder.name.partition("-")
    measure = "fooled_accepted" if content["arms"]["eot"].get("fooled_accepted") else "success"
    clean, bare, eot = (figure_text(content["arms"][arm][measure]) for arm in ("clean", "bare", "eot"))
    folders = folder.parent.glob(f"views of *-{eps}") if measure == "success" else ()
    views = transferred_success(folders, "eot", f" defence={defence} ")
    gains = (row for row in content["comparisons"] if (row["bank"], row["measure"]) == ("same", measure))
    gain = next((row["difference"] for row in gains if row["other"] == "bare"), None)
    passes = content["costs"]["eot"]["forward"] / 1000
    undefended = transferred_success([folder], "bare", " ")
    return [encoder, defence, f"{eps}/255", clean, undefended, bare, views, eot, figure_text(gain), f"{passes:.1f}"]


def transferred_success(folders: Iterable[Path], arm: str, name: str) -> str:
    """The success of an arm's files on the encoder whose name has that part, in whichever folder it was judged."""
    for file in (folder / "transfer.csv" for folder in folders):
        for row in read_rows(file) if file.exists() else []:
            if row["arm"] == arm and name in f"{row['judged_on']} ":
                ends = {"mean": row["success"], "low": row["success_low"], "high": row["success_high"]}
                return figure_text({key: float(str(value)) for key, value in ends.items()} | {"kind": "interval"})
    return "-"


PAGE = """# Defences, attacked through

Each share is of wrong answers: of held-out draws of the defence, in how many the picture is taken for something else,
as success is in a report. lite0 and lite2 are [EfficientNets with ImageNet's weights](encoders.md), on 20 labelled
photographs; vit is a small vision transformer, trained on the spot, judged by retrieval on 20 tiles of photographs.
There is no camera: the defence's {views} views of a picture are the only ones.

- *clean*: before any attack.
- *bare*: the attack is made on the encoder without the defence, at as many passes of the network, and judged behind
  the defence. Such files are what papers often report. This attack does not stop at the first wrong answer.
- *undefended*: the same files, judged without the defence. What it exceeds *bare* by is what papers claim;
  where it does not, the defence fails this control.
- *its views*: made on the mean over the defence's kind of views, without its rule, at as many passes.
- *through*: {gradients} gradients through the views and the rule, a draw a step, from the better of no change
  and the file of *bare*; Wiener, L-inf, 8-bit files.
- *gain*: *through* minus *bare*, on the same pictures.
- *passes*: thousands of forward passes of the network for *through*, the choice of its step included.
- brackets: 95 % [intervals](intervals.md) over photographs; parentheses: the range of photographs.

{rows}

`consistency` is a detector, which changes no answer: its row has the share of draws that are wrong *and* accepted,
where 5 % of clean draws are flagged. The attacks were not [checked](sanity_checks.md), and a stronger one may exist.
Measured on {dates} with {versions},
on {machine}.

```bash
{command}
```

What has no row was not run; what is finished is not made again. [Defences](defences.md) says what each computes.
"""


def table_page(out: Path) -> str:
    """The page of all finished runs. Raises ValueError for none."""
    folders = [path.parent for path in out.glob("*/*/metrics.json") if path.parent.name.partition("-")[0] in DEFENCES]
    if not folders:
        raise ValueError(f"`--out` must hold a finished run; {out} has none: run some first (--encoders)")
    folders.sort(key=lambda folder: [*DEFENCES].index(folder.name.partition("-")[0]))
    folders.sort(key=lambda folder: (folder.parent.name, int(folder.name.partition("-")[2])))
    manifests = [read_record(folder / "manifest.json") for folder in folders]
    return PAGE.format(
        views=VIEWS,
        gradients=GRADIENTS,
        rows=dense_table(HEAD, map(table_row, folders)),
        command="python scripts/defence_table.py --page docs/defence_table.md",
        **provenance(manifests),
    )


def main() -> None:
    command = table_options()
    options = command.parse_intermixed_args()
    try:
        if "vit" in options.encoders:
            trace_vit(options.out)
        cells = [(encoder, eps) for eps in options.eps for encoder in options.encoders]
        results = [
            attack_defence(*cell[:1], defence, cell[1], options) for cell in cells for defence in options.defences
        ]
        results += [attack_views(*cell, options) for cell in cells]
        if options.page:
            write_text(options.page, table_page(options.out))
    except ValueError as error:
        command.error(str(error))
    sys.exit(0 if all(results) else 1)
