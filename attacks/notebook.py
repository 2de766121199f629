"""The whole evaluation as one Python call, for notebooks; its result displays the report."""

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from torch import Tensor, nn

from attacks.data.images import as_path
from attacks.experiment.job import job
from attacks.experiment.results import HEADS, headline, table_columns, table_text
from attacks.report.columns import text_rows
from attacks.report.comparison import RANKING, ComparedRuns, compare_runs, refuse_foreign, write_comparison
from attacks.report.words import interval_text, measure_name
from attacks.runtime.plugins import given, given_name
from attacks.runtime.tables import read_rows
from attacks.runtime.untrusted import refuse_file
from attacks.schema.groups import PLUGINS
from transforms.doors import made

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attacks.gate.verdict import Verdict

#: A name, also with a model, or a module.
Encoder: TypeAlias = str | nn.Module
#: Text columns of per_image.csv, also where a picture is named 0001.
TEXTS = ("picture", "cluster", "identity", "split", "target", "arm", "bank")


@dataclass(frozen=True, eq=False)
class Robustness:
    """The result of a run. A notebook displays its report; print shows the table of the arms."""

    folder: Path
    metrics: dict[str, Any]  # the content of metrics.json

    @property
    def arms(self) -> dict[str, Any]:
        """The mean and its 95 % interval by arm and measure, such as `arms["eot"]["success"]["mean"]`."""
        return dict(self.metrics["arms"])

    @cached_property
    def per_image(self) -> list[dict[str, Any]]:
        """The rows of per_image.csv, from which all tables are computed: one for each picture, arm and bank of views.
        A missing value is None."""
        rows = read_rows(self.folder / "per_image.csv")
        return [{key: text if key in TEXTS else _number(text) for key, text in row.items()} for row in rows]

    def table(self) -> "Table":
        """The arms with their success and cosine, or their score or distance, with 95 % intervals."""
        columns = table_columns(self.metrics)
        rows = ((arm, *(interval_text(row[name]) for name in columns)) for arm, row in self.arms.items())
        return Table(("arm", *(HEADS[name] for name in columns)), tuple(rows))

    def plot(self) -> "Figure":
        """The primary measure of each arm with its 95 % interval, as a figure of matplotlib."""
        from attacks.report.figures import dots  # here: it imports matplotlib

        measure = self.metrics["primary"]["measure"]
        return dots({arm: row[measure] for arm, row in self.arms.items()}, measure_name(measure))

    def gate(self, policy: str | Path) -> "Verdict":
        """The verdict of a policy (docs/gate.md), a file or the name of a bundled one, on this run. Raises ValueError
        or OSError for one that cannot be read or does not fit the run."""
        from attacks.commands.gate import run_verdict
        from attacks.evidence.custody import policy_origin
        from attacks.gate.policy import policy_file

        return run_verdict(policy_origin(policy_file(policy)), self.folder)

    def __str__(self) -> str:
        return f"{table_text(self.metrics)}\n\n{headline(self.metrics)}\nreport: {self.folder / 'report.html'}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _frame(self.folder / "report.html", "robustness report")


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results of several encoders on the same pictures, by name. A notebook displays the page of `viewproof
    compare`; print shows the encoders, the most robust first."""

    folder: Path
    runs: dict[str, Robustness]
    result: ComparedRuns  # pair by pair

    def table(self) -> "Table":
        """The encoders, the most robust first, with 95 % intervals; a letter in common: cannot be told apart."""
        head, *rows = text_rows(RANKING, self.result.standings)
        return Table(tuple(head), tuple(map(tuple, rows)))

    def __str__(self) -> str:
        lines = [str(self.table())] if self.result.tables else []
        lines += [f"not compared: {line}" for line in self.result.refusals]
        return "\n".join([*lines, f"page: {self.folder / 'index.html'}"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _frame(self.folder / "index.html", "comparison of encoders")


@dataclass(frozen=True)
class Table:
    """Rows of text under a head. A notebook shows a table; print shows its columns."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        cells = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.head)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


@overload
def robustness(encoder: str | nn.Module = ..., pictures: Any = ..., **values: Any) -> Robustness: ...


@overload
def robustness(
    encoder: Sequence[Encoder] | Mapping[str, Encoder], pictures: Any = ..., **values: Any
) -> Comparison: ...


def robustness(
    encoder: Encoder | Sequence[Encoder] | Mapping[str, Encoder] = "pocket",
    pictures: Any = None,
    *,
    preset: str = "evaluate",
    eps: str | float | None = None,
    steps: int | None = None,
    out: str | Path | None = None,
    pipeline: str | Callable[[Any], Any] | None = None,
    **values: Any,
) -> Robustness | Comparison:
    """Attack pictures and score the encoder on held-out views, as `viewproof run` does.

    Args:
        encoder: a name, also with a model as in "timm:resnet50"; or a module in eval mode that takes (N,3,H,W) in
            [0,1] to (N,D). A list of these, or a mapping by name, gives a `Comparison`.
        pictures: the path of a folder or list; paths; a tensor (N,3,H,W) in [0,1]; or a list, Dataset or DataLoader
            of pictures, of (picture, label) pairs, whose labels are identities, or of mappings by column (see
            `attacks.data.images.as_path`). Pictures in memory, at most 5,000, are written beside the run as 8-bit
            PNG. None: the bundled ones.
        preset: the name of a preset, or the path of one.
        eps: the largest change of a pixel, as "8/255"; None for the preset's.
        steps: the steps of each attack, `attack.steps`; None for the preset's.
        out: the run directory, of several encoders the folder of their runs; None for a new one under `outputs/`.
        pipeline: your own resize before the encoder: the name of a kernel, or a function of an 8-bit array (H,W,3) or
            a PIL image that returns one, or a tensor. Pictures that it shows otherwise than people see them are
            flagged (see `attacks.evaluation.detection`). None for the preset's.
        values: any other key of the configuration, as `seed=1` or `**{"data.size": 128}`; as `defence`, `objective`,
            `optimiser` and `perturbation` also an object of your own (docs/write_a_part.md).

    Raises:
        ValueError, OSError, FloatingPointError: what a user can fix, in one line.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from attacks import robustness
        >>> pictures = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> small = {"preset": "smoke", "steps": 1, "data.size": 32, "evaluate.views": 4}
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
        ...     result = robustness("phash", pictures, out=f"{folder}/run", **small)
        encoder: phash; weights none; ...
        >>> result.table().head, list(result.arms)
        (('arm', 'success', 'cosine to clean'), ['clean', 'noise', 'no_eot', 'one_view', 'eot'])
    """
    now = datetime.now()
    default = f"outputs/{now:%Y-%m-%d}/{Path(preset).stem}-{now:%H-%M-%S-%f}"
    folder = Path(out if out is not None else default)
    refuse_file(folder, "out")
    if not isinstance(pipeline, str | None) and not callable(pipeline):
        raise ValueError(
            f"`pipeline` must be a kernel's name, such as cv2_linear, or a function; got {type(pipeline).__name__}"
        )
    kernel, function = (pipeline, None) if isinstance(pipeline, str) else (None, pipeline)
    arguments = {"perturbation.eps": eps, "attack.steps": steps, "evaluate.pipeline": kernel}
    keys: dict[str, Any] = {key: value for key, value in arguments.items() if value is not None}
    parts = {key: values.pop(key) for key in PLUGINS if not isinstance(values.get(key, ""), str)}
    for key, part in parts.items():
        made(key, part)
        keys |= {key: "plugin", f"{key}.model": given_name(part)}
    if "perturbation" in parts:
        if eps is not None:
            raise ValueError(f"`eps` is that of your perturbation; got {eps}: leave it out")
        keys["perturbation.eps"] = str(float(parts["perturbation"].eps))
    encoders = {"": encoder} if isinstance(encoder, str | nn.Module) else _by_name(encoder)
    several = "" not in encoders
    if several:
        refuse_foreign(folder, "out")
    if pictures is not None:
        keys |= {"data": "folder", "data.path": str(as_path(pictures, folder if several else folder.parent))}
    if repeats := keys.keys() & values.keys():
        texts = [f"`{key}` is given twice: {keys[key]!r} by its own argument and {values[key]!r}" for key in repeats]
        raise ValueError(f"{min(texts)}; leave one out")
    with given(parts):
        runs = {name: _run(item, folder / name, preset, keys | values, function) for name, item in encoders.items()}
    if not several:
        return runs[""]
    write_comparison(result := compare_runs({run.folder: name for name, run in runs.items()}), folder)
    return Comparison(folder, runs, result)


def _run(
    encoder: Encoder, folder: Path, preset: str, values: Mapping[str, Any], pipeline: Callable[[Any], Any] | None
) -> Robustness:
    """The run of one encoder."""
    from attacks.schema.composition import compose, words  # here: it imports Hydra, which only a run needs

    module = encoder if isinstance(encoder, nn.Module) else None
    name, _, model = encoder.partition(":") if isinstance(encoder, str) else ("", "", "")
    keys = {key: value for key, value in {"encoder": name, "encoder.model": model}.items() if value}
    overrides = words(keys | dict(values))
    run = compose(preset, overrides)
    with nullcontext() if module is None else _module_state(module, check_output=not run.encoder.features):
        content = job(run, folder, Path(preset).stem, overrides, module=module, pipeline=pipeline)
    if not content:
        others = f"others are at work: the last to end has the result, in {folder}"
        raise ValueError(f"`shard={run.shard}` is done, and {others}")
    return Robustness(folder, content)


def _by_name(encoders: Any) -> dict[str, Encoder]:
    """Encoders by the name of their run, which is a folder's too. Raises ValueError."""
    if isinstance(encoders, Mapping):
        by_name = {str(name): encoder for name, encoder in encoders.items()}
    else:
        items = encoders if isinstance(encoders, Sequence) else [encoders]
        labels = [re.sub(r"[^A-Za-z0-9_.-]+", "-", e if isinstance(e, str) else type(e).__name__) for e in items]
        numbers = [f"-{i}" if labels.count(label) > 1 else "" for i, label in enumerate(labels, 1)]
        by_name = {label + number: e for label, number, e in zip(labels, numbers, items, strict=True)}
    if not by_name:
        raise ValueError("`encoder` must name at least one encoder; got none")
    for name, encoder in by_name.items():
        if not isinstance(encoder, str | nn.Module):
            raise ValueError(f"`encoder` must be a name or a torch.nn.Module; got {type(encoder).__name__}")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}", name):
            raise ValueError(f"`encoder` must have names of letters, digits, spaces, '.', '_' and '-'; got {name!r}")
    return by_name


def _frame(page: Path, title: str) -> str:
    """A page in a sandboxed frame: it runs no scripts, and its style does not affect the notebook."""
    content = html.escape(page.read_text(encoding="utf-8"))
    style = "width: 100%; height: 48em; border: 1px solid #8888"
    return f'<iframe sandbox title="{title}" style="{style}" srcdoc="{content}"></iframe>'


@contextmanager
def _module_state(module: nn.Module, check_output: bool) -> Iterator[None]:
    """Restore the modes and gradients of the caller's `module` after a run, which freezes it."""
    modes = [(part, part.training) for part in module.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    widths: list[int] = []  # of all outputs; all must equal the first
    pending: list[str] = []  # the pictures of the call that has no output yet

    def note_input(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        pending[:] = [_size(inputs)]

    def check(_module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
        pending.clear()
        if isinstance(output, Tensor) and output.ndim == 2:  # others are refused before the run begins
            widths.append(output.shape[1])
        if widths and widths[-1] != widths[0]:
            raise ValueError(
                f"`encoder` must give as many features for every size of picture; it gave {widths[0]} before and "
                f"{widths[-1]} to {_size(inputs)}: begin it with a resize such as torch.nn.AdaptiveAvgPool2d(64)"
            )

    hooks = []
    if check_output:
        hooks = [module.register_forward_pre_hook(note_input), module.register_forward_hook(check)]
    try:
        yield
    except RuntimeError as error:
        if not pending or not re.search(r"\b(shape|size)s?\b", str(error)):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"`encoder` fails on {pending[0]}; pictures and views differ in size, so it must begin with a resize "
            f"(attacks.encoders.with_preprocess, or torch.nn.AdaptiveAvgPool2d(64)): {reason[:200]}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes:
            part.training = training
        for parameter, requires_grad in gradients:
            parameter.requires_grad_(requires_grad)


def _size(inputs: tuple[Any, ...]) -> str:
    return f"pictures shaped {tuple(inputs[0].shape)}" if inputs and isinstance(inputs[0], Tensor) else "pictures"


def _number(text: str) -> float | int | str | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None
