"""The states of a run directory: what each command does in each of them, alone and with another process at work."""

import fcntl
import json
import os
import re
import shutil
import signal
import time

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.experiment.test_crashes import trouble
from tests.helpers.crashes import PATIENCE, pause
from tests.helpers.processes import facts

#: The keys of a command behind those of the run that is in the directory.
COMMANDS = {"same": [], "other": ["seed=1"], "resume": None}
COMMANDS |= {"overwrite": ["overwrite=true"], "overwrite other": ["overwrite=true", "seed=1"]}
#: State -> the commands that it does not refuse.
ACCEPTABLE = {
    "new": {"same", "other", "overwrite", "overwrite other"},
    "interrupted": {"same", "resume", "overwrite", "overwrite other"},
    "at work": {"same", "resume"},
    "finished": {"overwrite", "overwrite other"},
    "foreign": set(),
}
MINE = ("notes.txt", "pictures/eot/mine.txt")
VERBS = ("start", "resume", "overwrite")
#: Sequences of each part of the test.
EXAMPLES = 50
#: Where a run is held in the tests of the table, and after how many operations in the sequences, at most.
GATE, LAST_GATE = 50, 260


@pytest.fixture(scope="session")
def references_by_seed(nursery, start, top):
    """By seed: the facts of an uninterrupted run, and the names of its files."""
    references = {}
    for number in (0, 1):
        folder = top / f"whole-{number}"
        assert nursery.run([*start(folder), f"seed={number}"])[0] == 0
        references[number] = facts(folder), names(folder)
    return references


def names(folder):
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return set(paths) - {".lock"}


def tree(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def seed_of(folder):
    return json.loads((folder / "manifest.json").read_text())["seed"]


def wait_for_gate(nursery, pid, gate):
    """Wait until a process is held at its gate, or has ended; its exit code and output then."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        if gate.exists():
            return None
        if (result := nursery.wait(pid, 0.01)) is not None:
            return result
    raise AssertionError("neither held nor ended")


def refusal(result):
    code, text = result
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert code == 1 and len(errors) == 1 and "Traceback" not in text, text
    return errors[0]


def prepare(state, folder, crashes):
    """Make a directory of this state; `at work` begins as a new one."""
    if state in ("interrupted", "finished"):
        kills = sorted((crashes / "kill").iterdir())
        shutil.copytree(kills[-1 if state == "finished" else len(kills) // 2], folder)
        for name in MINE:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
    elif state in ("empty", "left over", "foreign"):
        folder.mkdir()
        left = {"empty": [], "left over": [".lock", f".manifest.json.{16 * '0'}.tmp"], "foreign": ["notes.txt"]}
        for name in left[state]:
            (folder / name).touch()


CELLS = [(state, command) for state in ("new", "empty", "left over", *list(ACCEPTABLE)[1:]) for command in COMMANDS]


@pytest.mark.nightly
@pytest.mark.parametrize(("state", "command"), CELLS)
def test_every_command_in_every_state(nursery, start, recording, references_by_seed, tmp_path, state, command):
    folder, gate, fellow = tmp_path / "run", tmp_path / "gate", None
    prepare(state, folder, recording("pictures")[1])
    if state == "at work":
        fellow = nursery.start(start(folder), pause, folder, GATE, gate)
        assert wait_for_gate(nursery, fellow, gate) is None
    words, old_tree = COMMANDS[command], tree(folder)
    pid = nursery.start([f"resume={folder}"] if words is None else [*start(folder), *words])
    state_key = "new" if state in ("empty", "left over") else state
    if command in ACCEPTABLE[state_key]:
        if fellow is not None:
            time.sleep(1)  # to join
            gate.unlink()
        code, text = nursery.wait(pid)
        assert code == 0 and "Traceback" not in text, text
        assert seed_of(folder) == ("other" in command)
        mine = {name for name in MINE if name in old_tree}
        assert facts(folder) == references_by_seed[seed_of(folder)][0]
        assert names(folder) == references_by_seed[seed_of(folder)][1] | mine
        assert all((folder / name).read_bytes() == old_tree[name] for name in mine)
        assert (state, command) != ("interrupted", "same") or f"note: going on with the run in {folder}" in text
    else:
        line = refusal(nursery.wait(pid))
        assert tree(folder) == old_tree
        assert (state, command) != ("finished", "same") or "overwrite=true" in line
        if command == "other" and state in ("interrupted", "at work"):
            assert re.search(r"\bseed\b.*\b0\b.*\b1\b", line)
        gate.unlink(missing_ok=True)
    if fellow is not None:
        assert nursery.wait(fellow)[0] == 0 and facts(folder) == references_by_seed[0][0]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_run_that_is_stopped_prints_how_to_resume(nursery, start, references_by_seed, tmp_path, number):
    folder, gate = tmp_path / "run", tmp_path / "gate"
    pid = nursery.start(start(folder), pause, folder, GATE, gate)
    assert wait_for_gate(nursery, pid, gate) is None
    os.kill(pid, number)
    gate.unlink(missing_ok=True)
    code, text = nursery.wait(pid)
    last_line = f"stopped by {number.name}; go on with: python -m attacks.run resume={folder}"
    assert code == 128 + number and text.splitlines()[-1] == last_line, text
    assert not (wrong := trouble(nursery, folder, None, references_by_seed[0][0])), wrong


class Directory(RuleBasedStateMachine):
    """Two processes on one directory. Each is held before one of its operations, or has ended. `surroundings` are the
    fixtures; the state and the seed of the run are read from the directory."""

    surroundings = None
    count = 0

    def __init__(self):
        super().__init__()
        self.nursery, self.start, self.whole, top = self.surroundings
        type(self).count += 1
        self.folder, self.gates = (
            top / f"states-{self.count}",
            [top / f"gate-{self.count}-{process}" for process in "AB"],
        )
        self.held, self.is_complete = {}, False

    def state(self):
        if self.held:
            return "at work"
        parts = ("metrics.json", "finished"), ("manifest.json", "interrupted")
        return next((state for name, state in parts if (self.folder / name).exists()), "new")

    def is_single(self):
        """Whether a process has the directory for itself, so that another one would wait for it."""
        if not self.held:
            return False
        with (self.folder / ".lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def command(self, command, number):
        """The command line for a run of this seed, and its name in the table."""
        if command == "resume":
            return [f"resume={self.folder}"], command
        is_run = (self.folder / "manifest.json").exists()
        kind = "other" if is_run and seed_of(self.folder) != number else "same"
        kind = {"start": kind, "overwrite": "overwrite"}[command]
        return [*self.start(self.folder), f"seed={number}", f"overwrite={command == 'overwrite'}"], kind

    @precondition(lambda self: len(self.held) < 2 and not self.is_single())
    @rule(command=st.sampled_from(VERBS), number=st.integers(0, 1), at=st.integers(1, LAST_GATE))
    def begin(self, command, number, at):
        words, kind = self.command(command, number)
        state, process, old_tree = self.state(), min({0, 1} - set(self.held)), tree(self.folder)
        at = 1 if self.held else at  # a second process may soon wait for the first
        pid = self.nursery.start(words, pause, self.folder, at, self.gates[process])
        result = wait_for_gate(self.nursery, pid, self.gates[process])
        if kind not in ACCEPTABLE[state]:
            assert result is not None, f"{kind} is taken in the state {state}"
            refusal(result)
            assert tree(self.folder) == old_tree
        elif result is None:
            self.held[process] = pid
        else:
            self.over(result)

    def over(self, result):
        assert result[0] == 0, result[1]
        self.is_complete = True

    @precondition(lambda self: self.held)
    @rule(number=st.sampled_from([signal.SIGTERM, signal.SIGKILL]), index=st.integers(0, 1))
    def end(self, number, index):
        process = sorted(self.held)[index % len(self.held)]
        pid = self.held.pop(process)
        os.kill(pid, number)
        code, text = self.nursery.wait(pid)
        assert code == (143 if number == signal.SIGTERM else -9) and "Traceback" not in text, text
        self.gates[process].unlink()

    @precondition(lambda self: self.held)
    @rule()
    def go_on(self):
        for process in self.held:
            self.gates[process].unlink()
        for pid in [self.held.pop(process) for process in list(self.held)]:
            self.over(self.nursery.wait(pid))
        self.whole_run()

    def whole_run(self):
        expected, files = self.whole[seed_of(self.folder)]
        assert facts(self.folder) == expected and names(self.folder) == files

    def teardown(self):
        if self.held:
            self.go_on()
        if self.state() == "finished":
            self.whole_run()
        elif self.state() == "interrupted":
            expected = self.whole[seed_of(self.folder)][0]
            assert not (wrong := trouble(self.nursery, self.folder, None, expected)), wrong
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_any_sequence_of_commands_ends_with_the_run_that_its_manifest_states(
    nursery, start, references_by_seed, top, part
):
    Directory.surroundings = nursery, start, references_by_seed, top
    calm = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    # A failing sequence is printed as it is: each attempt at a shorter one takes seconds.
    options = settings(
        max_examples=EXAMPLES,
        stateful_step_count=8,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=calm,
    )
    run_state_machine_as_test(seed(part)(Directory), settings=options)
