"""Whether the times of a run can be, by the clock of its machine."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attacks.experiment.directory import FILES, read_json
from attacks.runtime.clock import instant
from attacks.runtime.untrusted import parse_json

#: Seconds that rounding and the end of a run may add to its journal, and the share of it by which a clock may be set.
SLACK, DRIFT = 2.0, 1e-3


def time_problems(folder: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each time of a finished run that another one contradicts: its beginning in manifest.json, its
    end in files.json, and the seconds of its journal."""
    try:
        start, end = instant(manifest["started"]), instant(read_json(folder / FILES)["ended"])
        with (folder / "events.jsonl").open("rb") as lines:  # of any number
            journal = max((float(parse_json(line, "events.jsonl")["seconds"]) for line in lines), default=0.0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"the times of the run cannot be read: {error}"
        return
    if end < start:
        yield f"the record says that the run ended at {end}, before it began at {start}"
    elif (seconds := (end - start).total_seconds()) + SLACK + DRIFT * journal < journal:
        yield f"the record says that the run took {seconds:.0f} s, and its journal has {journal:.0f} s: one was moved"
    if end > datetime.now(UTC):
        yield f"the record says that the run ended at {end}, which lies in the future"
