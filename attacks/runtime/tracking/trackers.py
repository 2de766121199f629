"""The trackers of a run: events.jsonl always, and the one that its configuration names."""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from attacks.runtime.tracking.adapters import ADAPTERS
from attacks.runtime.tracking.events import JsonLines, Tracker, Values, leaves
from attacks.schema.secrets import masked, refuse_credentials
from attacks.schema.tracker import MLflowConfig, NoTrackerConfig, TensorBoardConfig, WandBConfig

Node = NoTrackerConfig | TensorBoardConfig | MLflowConfig | WandBConfig

#: Files of the run directory that are logged at its end, where they exist.
PAGES = ("views.png", "report.html")
#: Characters of an error that a warning shows.
LONGEST = 300


class Trackers:
    """Several trackers as one; a context manager that closes them, after an exception too.

    A tracker of another library that fails is dropped with one warning, and the run continues. events.jsonl is one of
    the results, so a failure to write it is an error.
    """

    def __init__(self, events: Tracker | None = None, others: Mapping[str, Tracker] | None = None) -> None:
        self.events, self.others = events, dict(others or {})

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind is not None else nullcontext():  # the first error matters
            self.close(failed=kind is not None)

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        self._each(lambda tracker: tracker.log_scalars(step, values, arm))

    def log_artifact(self, path: Path) -> None:
        self._each(lambda tracker: tracker.log_artifact(path))

    def close(self, failed: bool = False) -> None:
        try:
            self._each(lambda tracker: tracker.close(failed))
        finally:
            self.events, self.others = None, {}

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.others.items()):
            try:
                call(tracker)
            except Exception as error:
                del self.others[name]
                reason = one_line(error)
                print(f"warning: tracker={name} failed and is dropped, the run continues: {reason}", file=sys.stderr)
                with suppress(Exception):
                    tracker.close(failed=True)
        if self.events is not None:
            call(self.events)


def tracker(node: Node, out: Path, run_name: str, config: Mapping[str, Any]) -> Trackers:
    """Start the trackers of a run.

    Args:
        node: the group `tracker` of its configuration.
        out: the run directory, which exists.
        config: the configuration, logged without its group `tracker`.

    Raises:
        ValueError: a missing library, a value outside its choices, or a tracker that cannot be started.
        OSError: events.jsonl cannot be written.
    """
    check(node)
    shown = {key: value for key, value in config.items() if key != "tracker"}
    keys = {key: value for key, value in vars(node).items() if key != "name"}
    try:
        others: dict[str, Tracker] = {}
        if node.name in ADAPTERS:
            others[node.name] = ADAPTERS[node.name](**keys, out=out, run_name=run_name, config=shown)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"`tracker={node.name}` could not be started: {one_line(error)}") from error
    try:
        return Trackers(JsonLines(out / "events.jsonl"), others)
    except BaseException:
        Trackers(None, others).close(failed=True)
        raise


def check(node: Node) -> None:
    """Raise ValueError for a store or a mode that no tracker supports."""
    if isinstance(node, WandBConfig) and node.mode not in ("offline", "online"):  # others ask at the terminal
        raise ValueError(f"`tracker.mode` must be one of offline, online; got {node.mode!r}")
    if not isinstance(node, MLflowConfig) or node.uri is None:
        return
    scheme, _, rest = node.uri.partition("://")
    if scheme not in ("sqlite", "http", "https") or not rest.strip("/"):
        raise ValueError(
            f"`tracker.uri` must be sqlite:///FILE, http://SERVER or https://SERVER; got {masked(node.uri)!r} "
            "(MLflow's store of plain files is deprecated)"
        )
    if scheme != "sqlite":
        refuse_credentials(node.uri, "`tracker.uri`")


def refuse_unasked(node: Node, overrides: Iterable[str]) -> None:
    """Only the command line, no preset file, may let a tracker use the network or write outside the run directory and
    its parent. Raises ValueError, also for an unsupported tracker (see `check`)."""
    check(node)
    typed = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    sends = {"mode": getattr(node, "mode", "offline"), "uri": getattr(node, "uri", None) or ""}
    for key, value in sends.items():
        if value in ("offline", "") or typed.get(f"tracker.{key}", "").strip("'\"") == value:
            continue
        effect = "writes to a file of its own" if value.startswith("sqlite:") else "sends the run over the network"
        setting = f"tracker.{key}={masked(value)}"
        raise ValueError(
            f"`{setting}` {effect}, so a preset may not choose it; to allow it, give {setting} on the command line"
        )


def log_step(tracker: Tracker, line: Any, batch: int = 0) -> None:
    """One step of an optimised arm, a line of `steps.csv`. Every batch counts from 0, so each later batch is an arm
    of its own."""
    values = {name: getattr(line, name) for name in ("objective", "held_out", "snr", "evals")}
    tracker.log_scalars(line.step, values, f"{line.arm}/batch {batch}" if batch else line.arm)


def log_end(tracker: Tracker, content: Mapping[str, Any], out: Path) -> None:
    """The tables of metrics.json as scalars, such as `final/eot/success/mean`, and the pages."""
    wide = content.get("wide") or {}
    for title, arms in (("final", content["arms"]), ("final wide", wide.get("arms", {}))):
        for arm, row in arms.items():
            numbers = {name: float(value) for name, value in leaves(row, "/") if isinstance(value, int | float)}
            tracker.log_scalars(0, numbers, f"{title}/{arm}")
    for name in PAGES:
        if (out / name).is_file():
            tracker.log_artifact(out / name)


def one_line(error: Exception) -> str:
    """An error as one line of bounded length, credentials masked: it may quote the address of a proxy."""
    text = masked(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
