"""The checks of a GPU, rehearsed on a CPU."""

import subprocess
import sys

import pytest

from scripts import gpu_check


@pytest.mark.nightly
def test_the_rehearsal_runs_every_step(tmp_path, capsys):
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 0
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert [line.split(":")[0] for line in summary.splitlines() if ": done, " in line] == [
        step.name for step in gpu_check.gpu_steps("cpu", tmp_path)
    ]
    assert capsys.readouterr().out.count(": done, ") == 4


def test_a_step_that_fails_or_lasts_is_named(tmp_path):
    failed = gpu_check.GpuStep("bad", 60, ("-c", "print('why'); raise SystemExit(3)"))
    good, part = gpu_check.ran(failed, tmp_path)
    assert not good and "failed with status 3" in part and "why" in part
    late = gpu_check.GpuStep("late", 1, ("-c", "import time; time.sleep(30)"))
    assert "stopped after 1 s" in gpu_check.ran(late, tmp_path)[1]


def test_an_old_folder_is_refused(tmp_path):
    command = [sys.executable, gpu_check.__file__, "--device", "cpu", "--out", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 2 and "exists: name a new folder" in process.stderr
