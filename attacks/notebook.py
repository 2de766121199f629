"""The whole evaluation as one Python call, for notebooks; its result displays the report."""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attacks.experiment.job import job
from attacks.experiment.results import headline, table
from attacks.runtime.tables import read_rows

#: Text columns of per_image.csv, also where a picture is named 0001.
TEXTS = ("picture", "identity", "arm", "bank")


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

    def __str__(self) -> str:
        return f"{headline(self.metrics)}\n{table(self.metrics)}\nreport: {self.folder / 'report.html'}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The report in a sandboxed frame: its style does not affect the notebook, and it runs no scripts."""
        page = html.escape((self.folder / "report.html").read_text(encoding="utf-8"))
        style = "width: 100%; height: 48em; border: 1px solid #8888"
        return f'<iframe sandbox title="robustness report" style="{style}" srcdoc="{page}"></iframe>'


def robustness(
    encoder: str | nn.Module = "pocket",
    pictures: str | Path | None = None,
    *,
    preset: str = "evaluate",
    eps: str | float | None = None,
    out: str | Path | None = None,
    **values: Any,
) -> Robustness:
    """Attack pictures and score the encoder on held-out views, as `python -m attacks.run` does.

    Args:
        encoder: a name, also with a model as in "timm:resnet50"; or a module in eval mode that takes (N,3,H,W) in
            [0,1] to (N,D).
        pictures: a folder of pictures; None for the bundled ones.
        preset: the name of a preset, or the path of one (see README).
        eps: the largest change of a pixel, as "8/255"; None for the preset's.
        out: the run directory; None for a fresh one under `outputs/`.
        values: any other key of the configuration, as `seed=1` or `**{"attack.steps": 20}`.

    Raises:
        ValueError, OSError, FloatingPointError: what a user can fix, in one line.
    """
    from attacks.run import compose  # here: it imports Hydra, which only a run needs

    if not isinstance(encoder, str | nn.Module):
        raise ValueError(f"`encoder` must be a name or a torch.nn.Module; got {type(encoder).__name__}")
    if not isinstance(pictures, str | Path | None):
        raise ValueError(f"`pictures` must be the path of a folder; got {type(pictures).__name__}")
    name, _, model = encoder.partition(":") if isinstance(encoder, str) else ("", "", "")
    keys: dict[str, Any] = {"encoder": name} if name else {}
    keys |= {"encoder.model": model} if model else {}
    keys |= {"data": "folder", "data.path": str(pictures)} if pictures is not None else {}
    keys |= {"perturbation.eps": eps} if eps is not None else {}
    overrides = [word(key, value) for key, value in (keys | values).items()]
    run = compose(preset, overrides)
    folder, module = Path(out) if out is not None else _fresh(preset), None if isinstance(encoder, str) else encoder
    with nullcontext() if module is None else _restored(module, checked=not run.encoder.features):
        return Robustness(folder, job(run, folder, Path(preset).stem, overrides, module=module))


@contextmanager
def _restored(module: nn.Module, checked: bool) -> Iterator[None]:
    """Restore the modes and gradients of the caller's `module` after a run, which freezes it. Its output is checked
    here, unless the run reads the features of layers."""
    modes = [(part, part.training) for part in module.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    widths: list[int] = []  # of all outputs; all must equal the first

    def check(_module: nn.Module, inputs: tuple[Any, ...], answer: object) -> None:
        if not checked:
            return
        if not isinstance(answer, Tensor) or answer.ndim != 2:
            kind = f"one shaped {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"a {type(answer).__name__}"
            raise ValueError(
                f"`encoder` must answer with one tensor, a row of features for each picture (N,D); it answered with "
                f"{kind} to {_size(inputs)}: end it with torch.nn.Flatten(), or return its embedding alone"
            )
        widths.append(answer.shape[1])
        if answer.shape[1] != widths[0]:
            raise ValueError(
                f"`encoder` must give as many features for every size of picture; it gave {widths[0]} before and "
                f"{answer.shape[1]} to {_size(inputs)}: begin it with a resize such as torch.nn.AdaptiveAvgPool2d(64)"
            )

    handle = module.register_forward_hook(check)
    try:
        yield
    finally:
        handle.remove()
        for part, training in modes:
            part.training = training
        for parameter, requires_grad in gradients:
            parameter.requires_grad_(requires_grad)


def _size(inputs: tuple[Any, ...]) -> str:
    return f"pictures shaped {tuple(inputs[0].shape)}" if inputs and isinstance(inputs[0], Tensor) else "pictures"


def word(key: str, value: Any) -> str:
    """`key=value` for the command line: a Python value in Hydra's grammar.

    Raises:
        ValueError: a value that the command line cannot express.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key):
        raise ValueError(f"`values` must be keys of the configuration such as attack.steps; got {key!r}")
    return f"{key}={_literal(key, value)}"


def _literal(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _quoted(str(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_quoted(str(k))}:{_literal(key, each)}" for k, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(_literal(key, each) for each in value) + "]"
    raise ValueError(f"`{key}` must be a word, a number, a list or a mapping; got {type(value).__name__}")


def _quoted(text: str) -> str:
    """A plain word unchanged; other text in quotes, with quotes escaped."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text):
        return text if text.lower() not in ("null", "true", "false", "nan", "inf") else f"'{text}'"
    escaped = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def _fresh(preset: str) -> Path:
    now = datetime.now()
    return Path("outputs") / f"{now:%Y-%m-%d}" / f"{Path(preset).stem}-{now:%H-%M-%S-%f}"


def _number(text: str) -> float | int | str | None:
    if not text:
        return None
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return text
