"""Two processes on one run, with pauses at their operations on files and locks: whichever makes the tables, the
record is whole, and the trackers have the figures once."""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.helpers.crashes import watch

SEEDS = [pytest.param(at, marks=pytest.mark.slow if at < 2 else pytest.mark.nightly) for at in range(20)]


class Recorder:
    """A tracker in a file of its own, as one of another library has a store of its own."""

    run_id = "1"

    def __init__(self, *, out, config, run_id=""):
        self.path = out.parent / f"{out.name}.tracked"
        self._add("start", run_id)

    def log_scalars(self, step, values, arm=""):
        self._add("scalars", arm, step)

    def log_artifact(self, path):
        self._add("artifact", path.name)

    def close(self, failed=False):
        self._add("close", failed)

    def _add(self, *event):
        with self.path.open("a") as file:
            file.write(json.dumps([os.getpid(), *event]) + "\n")


def slow_down(root, seed):
    """A shim: a tracker that records, and a pause before operations on files and locks below `root`."""
    from attacks.runtime.tracking import ADAPTERS

    ADAPTERS["tensorboard"] = Recorder
    draw = random.Random(seed)

    def pause(*_):
        time.sleep(draw.choice([0, 0, 0, 0.002, 0.01, 0.05]))

    watch(root, pause)
    sys.addaudithook(lambda event, _: pause() if event == "fcntl.flock" else None)


def check_figures(folder):
    """A shim in place of a command line: check a run, as the process that drew it."""
    from attacks.verification.verify import verify

    verdict = verify(folder)
    print(verdict, flush=True)
    os._exit(not verdict.passed)


def wrong(nursery, start, folder, seed):
    """What is wrong with a run of two processes; the second joins at some time, by `resume=` or by the same command,
    and in a quarter of the runs one of them is killed at some time, and the run resumed by a third."""
    draw = random.Random(seed)
    words = [*start(folder), "tracker=tensorboard"]
    first = nursery.start(words, slow_down, folder, 2 * seed)
    if by_resume := draw.random() < 0.5:
        while not (folder / "manifest.json").exists():
            time.sleep(0.001)
    time.sleep(draw.uniform(0, 1.5))
    second = nursery.start([f"resume={folder}"] if by_resume else words, slow_down, folder, 2 * seed + 1)
    victim = draw.random() < 0.25 and draw.choice([first, second])
    if victim:
        time.sleep(draw.uniform(0, 1.5))
        os.kill(victim, signal.SIGKILL)
    for pid in (first, second):
        code, text = nursery.wait(pid)
        if code and pid != victim and "is finished" not in text and "at work there" not in text:
            return f"exit {code}: {text}"
    if not (folder / "metrics.json").exists():
        code, text = nursery.run(
            words if not (folder / "manifest.json").exists() else [f"resume={folder}"], slow_down, folder, seed
        )
        if code:
            return f"resumed: exit {code}: {text}"
    code, text = nursery.run([], check_figures, folder)
    if code:
        return text
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    log = [json.loads(line) for line in Path(f"{folder}.tracked").read_text().splitlines()]
    finals = Counter(event["arm"] for event in events if event["event"] == "scalars" and "final" in event["arm"])
    final_counts = Counter(row[2] for row in log if row[1] == "scalars" and "final" in row[2])
    steps = Counter((e["arm"], e["step"]) for e in events if e["event"] == "scalars" and "final" not in e["arm"])
    if set(finals) != {f"final/{arm}" for arm in ("clean", "noise", "no_eot", "eot")} or set(finals.values()) != {1}:
        return f"events.jsonl: {finals}"
    if set(final_counts) != set(finals) or (not victim and final_counts != finals):
        return f"tracker: {final_counts}"
    if not victim and (len(steps) != 4 or set(steps.values()) != {1}):
        return f"steps: {steps}"
    if events[-1]["event"] != "end" or events[-1]["failed"] or (folder / "checkpoint").exists():
        return "no end"
    ends = [row for row in log if row[1] in ("start", "close")]
    return "" if victim or all(a[1] != b[1] for a, b in pairwise(ends)) else f"two trackers at once: {ends}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_joined_run_has_one_record_and_one_set_of_figures(nursery, start, top, seed):
    folder = top / f"joined-{seed}"
    assert not (text := wrong(nursery, start, folder, seed)), text
    shutil.rmtree(folder)
