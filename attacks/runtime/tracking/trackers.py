"""The trackers of a run: events.jsonl always, and the one that its configuration names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attacks.runtime.tracking.jsonl import JsonLines
from attacks.runtime.tracking.mlflow import MLflow, check_store
from attacks.runtime.tracking.protocol import Tracker, Values
from attacks.runtime.tracking.tensorboard import TensorBoard
from attacks.runtime.tracking.wandb import WandB, check_mode
from attacks.schema.secrets import masked
from attacks.schema.tracker import MLflowConfig, NoTrackerConfig, TensorBoardConfig, WandBConfig

if TYPE_CHECKING:
    from torch import Tensor

Node = NoTrackerConfig | TensorBoardConfig | MLflowConfig | WandBConfig


class Trackers:
    """Several trackers as one; a context manager that closes them, on an error too.

    A run is worth more than its log: a tracker of another library that fails on the way is dropped after one warning.
    events.jsonl lies beside the results, so what keeps it from being written is an error.
    """

    def __init__(self, lines: Tracker | None = None, others: Mapping[str, Tracker] | None = None) -> None:
        self.lines, self.others = lines, dict(others or {})

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError) if kind is not None else nullcontext():  # the first error is the news
            self.close(failed=kind is not None)

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        self._tell(lambda tracker: tracker.log_scalars(step, values, arm))

    def log_image(self, name: str, image: Tensor) -> None:
        self._tell(lambda tracker: tracker.log_image(name, image))

    def log_artifact(self, path: Path) -> None:
        self._tell(lambda tracker: tracker.log_artifact(path))

    def close(self, failed: bool = False) -> None:
        try:
            self._tell(lambda tracker: tracker.close(failed))
        finally:
            self.lines, self.others = None, {}

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.others.items()):
            try:
                what(tracker)
            except Exception as error:
                del self.others[name]
                print(
                    f"warning: tracker={name} failed and is dropped, the run goes on: {_said(error)}", file=sys.stderr
                )
                _end(tracker)
        if self.lines is not None:
            what(self.lines)


def tracker(node: Node, out: Path, run_name: str, config: Mapping[str, Any]) -> Trackers:
    """What a run is told to.

    Args:
        node: the group `tracker` of its configuration.
        out: the run directory, which exists.
        config: the configuration, to be shown beside the run; its own group `tracker` is left out.

    Raises:
        ValueError: a library that is missing, a value out of its choices, or a tracker that cannot be started.
        OSError: events.jsonl cannot be written.
    """
    check(node)
    shown = {key: value for key, value in config.items() if key != "tracker"}
    try:
        others = _started(node, out, run_name, shown)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"`tracker={node.name}` could not be started: {_said(error)}") from error
    try:
        return Trackers(JsonLines(out / "events.jsonl"), others)
    except BaseException:
        for other in others.values():
            _end(other)
        raise


def _started(node: Node, out: Path, run_name: str, config: Mapping[str, Any]) -> dict[str, Tracker]:
    if isinstance(node, TensorBoardConfig):
        return {node.name: TensorBoard(out, config)}
    if isinstance(node, MLflowConfig):
        return {node.name: MLflow(node.uri, node.experiment, out, run_name, config)}
    if isinstance(node, WandBConfig):
        return {node.name: WandB(node.mode, node.project, out, run_name, config)}
    return {}


def check(node: Node) -> None:
    """Refuse what no tracker can do, before anything is written. Raises ValueError."""
    if isinstance(node, MLflowConfig):
        check_store(node.uri)
    elif isinstance(node, WandBConfig):
        check_mode(node.mode)


def refuse_unasked(node: Node, overrides: Iterable[str]) -> None:
    """A run sends nothing anywhere, and writes nowhere but to its directory and beside it, unless whoever starts it
    says so: no preset file can. Raises ValueError, also for what no tracker can do (see `check`)."""
    check(node)
    typed = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    sends = {"mode": getattr(node, "mode", "offline"), "uri": getattr(node, "uri", None) or ""}
    for key, value in sends.items():
        if value in ("offline", "") or typed.get(f"tracker.{key}", "").strip("'\"") == value:
            continue
        what = "writes to a file of its own" if value.startswith("sqlite:") else "sends the run over the network"
        said = f"tracker.{key}={masked(value)}"
        raise ValueError(
            f"`{said}` {what}, so a preset may not choose it: if that is wanted, say {said} on the command line"
        )


def _end(tracker: Tracker) -> None:
    """Let go of a tracker that is not needed any more, whatever it says to that."""
    try:
        tracker.close(failed=True)
    except Exception:
        return


def _said(error: Exception) -> str:
    """What went wrong, on one line of bounded length."""
    words = masked(" ".join(f"{type(error).__name__}: {error}".split()))  # it may quote the address of a proxy
    return words if len(words) <= LONGEST else words[:LONGEST] + " ..."


LONGEST = 300
