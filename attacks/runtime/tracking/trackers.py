"""The trackers of a run: a journal in every process, and the tracker that its configuration names."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from attacks.runtime.files import write_json
from attacks.runtime.tracking.adapters import ADAPTERS
from attacks.runtime.tracking.events import Tracker, Values, event_file, metric_leaves
from attacks.runtime.untrusted import read_untrusted, word
from attacks.schema.secrets import masked
from attacks.schema.tracker import TrackerConfig, check_tracker

#: Files of the run directory that are logged at its end, where they exist.
PAGES = ("views.png", "report.html")
#: Characters of an error that a warning shows.
LONGEST = 300
#: In the folder of the checkpoint: the configuration of the run's tracker, and the id of the run in its library.
STATE_FILE = "tracker.json"


class Trackers(Tracker):
    """Several trackers as one; a context manager that closes them, after an exception too.

    A tracker of another library that fails is dropped with one warning, and the run continues. The journal becomes
    events.jsonl, a result, so a failure to write it is an error. `others` is None where none was started, or all were
    closed.
    """

    def __init__(self, events: Tracker | None = None, others: Mapping[str, Tracker] | None = None) -> None:
        self.events, self.others = events, None if others is None else dict(others)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind is not None else nullcontext():  # the first error matters
            self.close(failed=kind is not None)

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        self._forward(lambda tracker: tracker.log_scalars(step, values, arm))

    def log_artifact(self, path: Path) -> None:
        self._forward(lambda tracker: tracker.log_artifact(path))

    def close(self, failed: bool = False) -> None:
        try:
            self._forward(lambda tracker: tracker.close(failed))
        finally:
            self.events, self.others = None, None

    @contextmanager
    def ending(self, start: Callable[[], Mapping[str, Tracker]], folder: Path, out: Path) -> Iterator["Trackers"]:
        """Within the block the trackers for the end of the run, which are then closed; events.jsonl appears. `start`
        is called where this process has started none; if it fails, a warning. `folder` has the journals."""
        if self.events is not None:
            self.events.close()
            self.events = None
        with event_file(folder, out) as events:
            if self.others is None:
                try:
                    self.others = dict(start())
                except ValueError as error:
                    print(f"warning: the end of the run is in no tracker: {error}", file=sys.stderr)
            with Trackers(events, self.others) as last:
                self.others = None
                yield last

    def _forward(self, call: Callable[[Tracker], None]) -> None:
        others = self.others or {}
        for name, tracker in list(others.items()):
            try:
                call(tracker)
            except Exception as error:
                del others[name]
                reason = one_line(error)
                print(f"warning: tracker={name} failed and is dropped, the run continues: {reason}", file=sys.stderr)
                with suppress(Exception):
                    tracker.close(failed=True)
        if self.events is not None:
            call(self.events)


def started(node: TrackerConfig, folder: Path, out: Path, config: Mapping[str, Any]) -> dict[str, Tracker]:
    """Start the tracker of the run in `out`, if it has one, and store in `folder` which it is. Where an earlier
    process has stored the same, its run in the library goes on. `config` is logged without its group `tracker`.

    Raises ValueError: a missing library, a value outside its choices, or a tracker that cannot be started."""
    check_tracker(node)
    keys = {key: value for key, value in vars(node).items() if key != "name"}
    logged_config = {key: value for key, value in config.items() if key != "tracker"}
    state = tracker_state(folder)
    run_id = word(state.get("run_id")) if state.get("tracker") == asdict(node) else ""
    trackers: dict[str, Tracker] = {}
    if node.name in ADAPTERS:
        try:
            trackers[node.name] = ADAPTERS[node.name](**keys, out=out, config=logged_config, run_id=run_id)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"`tracker={node.name}` could not be started: {one_line(error)}") from error
    run_id = trackers[node.name].run_id if trackers else ""
    write_json(folder / STATE_FILE, {"tracker": asdict(node), "run_id": run_id})
    return trackers


def tracker_state(folder: Path) -> Mapping[str, Any]:
    """What `started` has stored in a folder, if anything."""
    return read_untrusted(folder / STATE_FILE) if (folder / STATE_FILE).exists() else {}


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
            numbers = {
                name: float(value) for name, value in metric_leaves(row, "/") if isinstance(value, int | float)
            }
            tracker.log_scalars(0, numbers, f"{title}/{arm}")
    for name in PAGES:
        if (out / name).is_file():
            tracker.log_artifact(out / name)


def one_line(error: Exception) -> str:
    """An error as one line of bounded length, credentials masked: it may quote the address of a proxy."""
    text = masked(" ".join(f"{type(error).__name__}: {error}".split()))
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."
