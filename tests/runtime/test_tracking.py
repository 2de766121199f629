"""The log of a run, without the libraries of the trackers."""

import errno
import json
import sys
from types import SimpleNamespace
from unittest.mock import call as mock_call
from unittest.mock import create_autospec

import pytest

from attacks.runtime.tracking import Tracker, Trackers, journal, log_end, log_step, started
from attacks.schema.groups import CHOICES
from attacks.schema.presets import refuse_untyped
from attacks.schema.tracker import MLflowConfig, NoTrackerConfig, WandBConfig
from tests.helpers.wrong import refused

CONFIG = {"seed": 0, "tracker": {"name": "none"}}
KEYS = ("tracker.mode", "tracker.uri")


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_run(out, *recorders):
    """A short run, logged to events.jsonl and to others."""
    line = SimpleNamespace(arm="eot", step=3, objective=0.25, held_out=None, snr=float("nan"), evals=24, views=4)
    interval = {"mean": 0.5, "low": 0.25, "high": 0.75}
    content = {"arms": {"eot": {"success": interval, "knn": None, "budget_used": 1.0}}, "wide": None}
    out.mkdir(exist_ok=True)
    (out / "report.html").write_text("a page")
    with Trackers(journal(out), dict(enumerate(recorders))) as trackers:
        log_step(trackers, line)
        log_step(trackers, line, batch=2)
        with trackers.ending(dict, out, out) as last:
            log_end(last, content, out)
    return events(out / "events.jsonl")


def test_an_event_is_a_line_and_equal_runs_write_equal_lines(tmp_path):
    first, second = log_run(tmp_path / "a"), log_run(tmp_path / "b")
    assert all(event.pop("seconds") >= 0 for event in first + second)
    assert first == second
    values = {"objective": 0.25, "held_out": None, "snr": None, "evals": 24.0}
    final = {"success/mean": 0.5, "success/low": 0.25, "success/high": 0.75, "budget_used": 1.0}
    assert first[1:] == [
        {"event": "scalars", "arm": "eot", "step": 3, "values": values},
        {"event": "scalars", "arm": "eot/batch 2", "step": 3, "values": values},
        {"event": "scalars", "arm": "final/eot", "step": 0, "values": final},
        {"event": "artifact", "path": "report.html"},
        {"event": "end", "failed": False},
    ]


def test_resumed_run_keeps_its_lines_except_an_incomplete_one(tmp_path):
    killed_journal = journal(tmp_path)
    killed_journal.log_scalars(0, {"objective": 1.0})
    killed_journal.file.write('{"event": "scal')
    killed_journal.file.close()
    killed_journal.lock.close()
    with Trackers(journal(tmp_path)).ending(dict, tmp_path, tmp_path):
        pass
    assert [line["event"] for line in events(tmp_path / "events.jsonl")] == ["start", "scalars", "start", "end"]


def test_full_disk_error_names_the_file_and_does_not_hide_the_original_error(tmp_path):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_journal():
        lines = journal(tmp_path)
        lines.file.close()
        lines.file = SimpleNamespace(name="events.jsonl", write=full, close=lambda: None)
        return lines

    with pytest.raises(OSError, match=r"events\.jsonl cannot be written: no space left on device"):
        full_journal().log_scalars(0, {"objective": 1.0})
    with pytest.raises(FloatingPointError), Trackers(full_journal()):
        raise FloatingPointError


@pytest.mark.parametrize("call", ["log_scalars", "log_artifact", "close"])
def test_failing_tracker_is_dropped_after_one_warning(tmp_path, capsys, call):
    bad, good = (create_autospec(Tracker, instance=True) for _ in range(2))
    getattr(bad, call).side_effect = ConnectionError("the server\nis gone")
    assert log_run(tmp_path, bad, good)[-1]["event"] == "end"
    output = capsys.readouterr().err
    assert output.count("warning") == 1 and output.count("\n") == 1 and "the server is gone" in output
    assert getattr(bad, call).call_count == 1 or call == "close"
    assert good.method_calls[-1] == mock_call.close(False) and len(good.method_calls) == 5
    assert bad.method_calls[-1] == mock_call.close(failed=True)  # it is closed, once


def test_all_trackers_are_closed_when_the_run_fails(tmp_path):
    recorder = create_autospec(Tracker, instance=True)
    with pytest.raises(RuntimeError), Trackers(journal(tmp_path), {"one": recorder}):
        raise RuntimeError
    assert recorder.method_calls == [mock_call.close(True)]
    assert events(next(tmp_path.glob("journal.*")))[-1]["failed"] is True


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_missing_library_error_gives_the_install_command(tmp_path, monkeypatch, name):
    for module in (name, "torch.utils.tensorboard", "sqlalchemy", "mlflow.entities"):
        monkeypatch.setitem(sys.modules, module, None)
    refused(rf'pip install "viewproof\[{name}\]"', started, CHOICES["tracker"][name](), tmp_path, tmp_path, CONFIG)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("uri", "word"), [("mlruns", "sqlite:///FILE"), ("https://me:secret@host/x", "MLFLOW_TRACKING_PASSWORD")]
)
def test_impossible_settings_are_refused_before_any_file_is_written(tmp_path, uri, word):
    refused(word, started, MLflowConfig(uri=uri), tmp_path, tmp_path, CONFIG)
    assert not list(tmp_path.iterdir())


REMOTE = {f"tracker.uri={uri}": MLflowConfig(uri=uri) for uri in ("https://host", "sqlite:////tmp/a.db")}
REMOTE["tracker.mode=online"] = WandBConfig(mode="online")


@pytest.mark.parametrize(("word", "node"), REMOTE.items())
def test_only_the_command_line_can_enable_a_remote_tracker(node, word):
    for overrides in ([], ["tracker=wandb"], ["tracker.mode=offline", "tracker.uri=https://elsewhere"]):
        refused("command line", refuse_untyped, SimpleNamespace(tracker=node), overrides, KEYS)
    refuse_untyped(SimpleNamespace(tracker=node), [word], KEYS)
    for local in (NoTrackerConfig(), WandBConfig(), MLflowConfig()):
        refuse_untyped(SimpleNamespace(tracker=local), [], KEYS)
