"""A program as a black box: it reads pictures, and writes a line of JSON for each.

A picture on its standard input is a line with the number of bytes in decimal digits, and then so many bytes: a PNG
file. The answer on its standard output is one line of JSON, and nothing else may be there. The program is started
with the first picture, and its standard input ends with the run.
"""

import io
import json
import math
import queue
import shlex
import subprocess
import threading
import time
import weakref
from contextlib import suppress
from typing import IO, Any

import numpy as np

from attacks.encoders.black_box.asked import MOST_BYTES, AnswerError, AnswerMismatch, BlackBox, png

#: Seconds to wait, after the first answer of a program, for a line too many.
SURPLUS = 0.2


def command(model: str, answer: str = "vector", timeout: float = 30.0) -> BlackBox:
    """The program of the command line `model`, which no shell reads.

    Use: an encoder that is a program.
    Not: a program that is slow to answer, unless a few hundred queries are enough.
    Source: this project's own.
    Cost: one line written and one read for each new picture.
    Oracle: a program that is started once, tests/encoders/black_box/test_command.py.
    With: 'encoder.model="python victim.py"'

    Args:
        answer: as of `BlackBox`.
        timeout: seconds for one picture, from its first byte to the end of the answer.

    Raises ValueError: an empty command line, or a time out of its range. Of a picture: `AnswerError`.
    """
    try:
        words = shlex.split(model)
    except ValueError as error:
        raise ValueError(f"`model` must be a command line; got {model!r} ({error})") from None
    if not words:
        raise ValueError("`model` must be a command line, such as 'python mine.py'; got an empty one")
    if not 0 < timeout < math.inf:
        raise ValueError(f"`timeout` must be a number of seconds, above 0; got {timeout}")
    program = _Program(words, f"encoder command:{model}", timeout)

    def ask(pixels: np.ndarray) -> list[Any]:
        return [program.answer(picture) for picture in pixels]

    return BlackBox(ask, f"command:{model}", answer=answer, batch=1)


class _Program:
    """A process, started for the first picture."""

    def __init__(self, words: list[str], title: str, timeout: float) -> None:
        self.words, self.title, self.timeout = words, title, timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.has_answered = False

    def answer(self, picture: np.ndarray) -> Any:
        """The JSON of one picture. Raises AnswerError in one line, after which the program is started anew."""
        process, file = self.process or self._start(), png(picture)
        deadline = time.monotonic() + self.timeout
        fault: type[AnswerError] = AnswerError
        try:
            self._refuse_surplus(0.0)
            writer = threading.Thread(target=_write, args=(process.stdin, b"%d\n%b" % (len(file), file)), daemon=True)
            writer.start()
            line = self.lines.get(timeout=self.timeout)
            if not line:
                raise BrokenPipeError
            if not line.endswith(b"\n") and len(line) >= MOST_BYTES:
                raise ValueError
            writer.join(max(0.0, deadline - time.monotonic()))
            if writer.is_alive():
                raise queue.Empty
            content = json.loads(line)
            self._refuse_surplus(0.0 if self.has_answered else SURPLUS)
            self.has_answered = True
            return content
        except queue.Empty:
            reason = f"no answer in {self.timeout:g} s"
        except OSError:
            reason = "it has ended"
        except AnswerMismatch as error:
            reason, fault = str(error), AnswerMismatch
        except (ValueError, RecursionError):
            reason = f"no JSON of at most {MOST_BYTES} bytes in a line: {line[:80]!r}"
        self.process = None
        _stop(process)
        goes_on = "start a new run" if fault is AnswerMismatch else "resume=DIRECTORY goes on"
        raise fault(f"{self.title}: {reason} (exit status {process.returncode}); {goes_on}")

    def _refuse_surplus(self, wait: float) -> None:
        """Raise AnswerMismatch where a line follows that answers no picture."""
        with suppress(queue.Empty):
            if line := self.lines.get(timeout=wait) if wait else self.lines.get_nowait():
                raise AnswerMismatch(
                    f"a line too many on its standard output: {line[:80]!r}; one line answers a picture"
                )
            self.lines.put(line)  # the end of the stream

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            process = subprocess.Popen(self.words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise AnswerError(f"{self.title} cannot be started: {error.strerror}") from None
        self.process, self.lines, self.has_answered = process, queue.Queue(), False
        weakref.finalize(self, _stop, process)
        threading.Thread(target=_read, args=(process.stdout, self.lines), daemon=True).start()
        return process


def _write(stream: IO[bytes], data: bytes) -> None:
    with suppress(OSError, ValueError):
        while data:
            data = data[stream.write(data) :]


def _read(stream: IO[bytes], lines: "queue.Queue[bytes]") -> None:
    """All lines of a stream, and an empty one at its end, or where a line is too long."""
    with io.BufferedReader(stream) as stream_lines:  # type: ignore[type-var]
        while line := stream_lines.readline(MOST_BYTES):
            lines.put(line)
            if len(line) == MOST_BYTES:
                break
    lines.put(b"")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process that has been started here."""
    assert process.stdin is not None
    with suppress(OSError):  # it has ended already
        process.stdin.close()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
