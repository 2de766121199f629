"""Runs of a second, forked from a process that has made one, and faults at their operations on files."""

import fcntl
import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch

#: Time limit of a run on a busy machine, in seconds.
PATIENCE = 120
#: Bytes of output that fit into a pipe.
OUTPUT = 1 << 20
#: Audited changes of a folder: which argument is the handle of the folder that the path begins at.
CHANGES = {"os.rename": 2, "os.remove": 1, "os.mkdir": 2, "os.rmdir": 1}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Nursery:
    """A process with everything loaded and used once; `start` forks a command line from it."""

    def __init__(self, arguments):
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def start(self, arguments, shim=None, *values):
        """The process id of `viewproof ARGUMENTS`; it calls `shim(*given)` first."""
        self.pipe.send(("start", arguments, shim, values))
        return self.pipe.recv()

    def wait(self, pid, patience=PATIENCE):
        """Its exit code, negative of a signal, and what it printed; None while it runs."""
        self.pipe.send(("wait", pid, patience))
        return self.pipe.recv()

    def run(self, arguments, shim=None, *values):
        pid = self.start(arguments, shim, *values)
        result = self.wait(pid)
        if result is None:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"hangs: {self.wait(pid)[1]}")
        return result

    def close(self):
        self.pipe.close()
        self.process.join(10)
        self.process.kill()


def _serve(pipe, arguments):
    import attacks.experiment.drawings
    import attacks.report.page
    from attacks.data.images import save_image

    # Figures take most of the time of a small run; files are written where they were.
    attacks.experiment.drawings.contact_sheet = lambda path, *_: save_image(path, torch.zeros(3, 1, 1))
    attacks.report.page.render_page = lambda *_: "a report"
    torch.set_num_threads(1)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        _command_line(arguments)
    pipe.send(None)
    outputs = {}
    while True:
        try:
            kind, *values = pipe.recv()
        except EOFError:
            return
        if kind == "start":
            pid, end = _fork(*values)
            outputs[pid] = end
            pipe.send(pid)
        else:
            pid, patience = values
            code = _wait(pid, patience)
            if code is None:
                pipe.send(None)
                continue
            with os.fdopen(outputs.pop(pid), "rb") as file:
                pipe.send((code, file.read().decode()))


def _fork(arguments, shim, values):
    end, log = os.pipe()
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, OUTPUT)
    pid = os.fork()
    if pid:
        os.close(log)
        return pid, end
    code = 70
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout, sys.stderr = (open(at, "w", buffering=1, closefd=False) for at in (1, 2))  # noqa: SIM115
        if shim is not None:
            shim(*values)
        code = _command_line(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _command_line(arguments):
    from attacks.run import cli
    from tests.helpers.processes import unique_words

    sys.argv = ["viewproof", *unique_words(arguments)]
    try:
        cli()
    except SystemExit as end:
        return 0 if end.code is None else end.code
    return 0


def _wait(pid, patience):
    deadline = time.monotonic() + patience
    while True:
        process, status = os.waitpid(pid, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


def watch(root, notice, after_sync=lambda handle: None):
    """Within this process, call `before(kind, path)` before every operation on a file below `root`: opening it to
    write, `fsync`, and the `CHANGES`. What it raises, the operation does."""
    root, mine, real, lock = str(root), threading.local(), os.fsync, threading.Lock()

    def notify(kind, path):
        if path is not None and not getattr(mine, "busy", False) and f"{path}/".startswith(f"{root}/"):
            mine.busy = True
            try:
                with lock:
                    notice(kind, Path(path))
            finally:
                mine.busy = False

    def hook(event, values):
        if event == "open" and isinstance(values[0], str | bytes) and values[2] & WRITES:
            notify("open", _absolute(values[0]))
        elif event in CHANGES:
            notify(event[3:], None if isinstance(values[0], int) else _absolute(values[0], values[CHANGES[event]]))

    def fsync(handle):
        path = _handle_path(handle)
        notify("fsync", path)
        real(handle)
        if f"{path}/".startswith(f"{root}/"):
            after_sync(handle)

    os.fsync = fsync
    sys.addaudithook(hook)


def _absolute(path, folder=-1):
    """A path without `..`, whatever is there; `folder` is the handle of the one that it begins at."""
    return os.path.normpath(Path(_handle_path(folder) if folder != -1 else Path.cwd(), os.fsdecode(path)))


def _handle_path(handle):
    return str(Path(f"/proc/self/fd/{handle}").readlink())


class Disk:
    """What of a folder is on the disk for certain: of a file the bytes at its last fsync, of a folder its entries."""

    def __init__(self, root):
        self.root, self.bytes, self.entries, self.handles = root, {}, {}, []

    def sync(self, handle):
        self.handles.append(os.dup(handle))  # so that its number is not used again
        number = os.fstat(handle).st_ino
        path = Path(_handle_path(handle))
        if path.is_dir():
            self.entries[number] = {entry.name: (entry.stat().st_ino, entry.is_dir()) for entry in path.iterdir()}
        else:
            self.bytes[number] = path.read_bytes()

    def after_power_cut(self, to, number=None):
        """Write the folder as a power cut at this moment may leave it."""
        to.mkdir()
        for name, (inside, folder) in self.entries.get(number or self.root.stat().st_ino, {}).items():
            if folder:
                self.after_power_cut(to / name, inside)
            else:
                (to / name).write_bytes(self.bytes.get(inside, b""))

    def after_torn_writes(self, to):
        """The same, where all entries have reached the disk, before the bytes."""
        shutil.copytree(self.root, to)
        for path in self.root.rglob("*"):
            if path.is_file():
                (to / path.relative_to(self.root)).write_bytes(self.bytes.get(path.stat().st_ino, b""))


class AtOnce(ThreadPoolExecutor):
    """A pool without threads: a task is done when it is submitted."""

    def submit(self, task, *arguments):
        future = Future()
        try:
            future.set_result(task(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def record(root, to):
    """A shim: before each operation, copies of the folder as a crash would leave it, `to`/MODE/NUMBER."""
    import attacks.experiment.exhibits

    attacks.experiment.exhibits.ThreadPoolExecutor = AtOnce  # a copy is of a folder that stands still
    disk, count = Disk(root), [0]
    for mode in ("kill", "half", "torn", "power"):
        (to / mode).mkdir(parents=True)

    def copy_folder(kind, path):
        count[0] += 1
        name = f"{count[0]:04d}-{kind}-{path.name}"
        if root.exists():
            shutil.copytree(root, to / "kill" / name)
            disk.after_torn_writes(to / "torn" / name)
            disk.after_power_cut(to / "power" / name)
        if kind == "fsync" and path.is_file():
            for end, share in (("", 0.5), ("-empty", 0)):
                copy = to / "half" / f"{name}{end}"
                shutil.copytree(root, copy)
                os.truncate(copy / path.relative_to(root), int(path.stat().st_size * share))

    watch(root, copy_folder, disk.sync)


def fail(root, at, number, kinds, lasting):
    """A shim: operation `at` of these kinds fails with an errno; if `lasting`, all after it too."""
    count = [0]

    def raise_error(kind, path):
        if kind in kinds:
            count[0] += 1
            if count[0] == at or (lasting and count[0] > at):
                raise OSError(number, os.strerror(number), str(path)) if kind != "fsync" else OSError(number, "x")

    watch(root, raise_error)


def limit(root, at, size):
    """A shim: the `at`-th file that is opened to write takes only `size` bytes."""
    count, real = [0], resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(kind, path):
        count[0] += kind == "open"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size if (kind, count[0]) == ("open", at) else real[0], real[1]))

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    watch(root, set_limit)


def pause(root, at, gate):
    """A shim: before operation `at` on a run that has a manifest make the file `gate`, and wait until it is gone."""
    count, exempt_paths = [0], (root, root / ".lock")

    def wait_at_gate(kind, path):
        if path not in exempt_paths:
            count[0] += (root / "manifest.json").exists()
            if count[0] == at and not gate.exists():
                gate.touch()
                while gate.exists():
                    time.sleep(0.005)
                count[0] += 1

    watch(root, wait_at_gate)
