"""The adapters with the real libraries: logs are read back, and nothing is sent over the network."""

import os
import socket
import struct
import subprocess
import sys

import pytest
from PIL import Image

from attacks.runtime.tracking import Trackers, journal, started
from attacks.schema.tracker import MLflowConfig, TensorBoardConfig, WandBConfig

pytestmark = [
    pytest.mark.trackers,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by the libraries
]
CONFIG = {"seed": 7, "encoder": {"name": "pocket", "features": []}, "tracker": {"name": "secret group"}}
STEPS = {step: 1 / (step + 1) for step in range(4)}
SECRET = "a1b2c3d4e5f6" * 3


@pytest.fixture
def offline_folder(monkeypatch, tmp_path):
    """Every connection to another machine fails the test; the environment holds a secret."""
    addresses, connect = [], socket.socket.connect

    def watched_connect(self, address):
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            addresses.append(address)
            raise OSError("no network in tests")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", watched_connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: addresses.append(host) or [])
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_MODE", "online")  # the run's own settings count, not the environment
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert addresses == []


def log_run(node, out, failed=False):
    """A short run; returns its directory."""
    out.mkdir(parents=True)
    (out / "report.html").write_text("a page")
    result = tracker(node, out)
    for arm in ("no_eot", "eot"):  # each arm counts from 0
        for step, value in STEPS.items():
            result.log_scalars(step, {"objective": value, "snr": float("nan"), "held_out": None}, arm)
    result.log_artifact(out / "report.html")
    Image.new("RGB", (6, 4), "red").save(out / "views.png")
    result.log_artifact(out / "views.png")
    result.close(failed)
    return out


def tracker(node, out, config=CONFIG):
    others = started(node, out, out, config)
    return Trackers(journal(out), others)


def no_secret(folder):
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert SECRET.encode() not in content and b"secret group" not in content, path


def test_tensorboard(offline_folder):
    out = log_run(TensorBoardConfig(), offline_folder / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(out / "tensorboard"))
    result.Reload()
    assert result.Tags()["scalars"] == ["no_eot/objective", "eot/objective"]
    for tag in result.Tags()["scalars"]:
        assert {event.step: event.value for event in result.Scalars(tag)} == pytest.approx(STEPS)
    (image,) = result.Images("views")
    assert (image.width, image.height) == (6, 4)
    assert b"pocket" in result.Tensors("configuration/text_summary")[0].tensor_proto.string_val[0]
    no_secret(offline_folder)


def test_mlflow(offline_folder):
    out = log_run(MLflowConfig(experiment="cite"), offline_folder / "Läufe 100% #1" / "run")
    log_run(MLflowConfig(experiment="cite"), out.parent / "second", failed=True)  # the same store
    import mlflow

    assert {path.name for path in out.parent.iterdir()} == {"run", "second", "mlflow.db", "mlflow-artifacts"}
    client = mlflow.MlflowClient(f"sqlite:///{out.parent / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'cite'")
    second, first = client.search_runs([experiment.experiment_id])
    assert (first.info.status, second.info.status, first.info.run_name) == ("FINISHED", "FAILED", out.name)
    assert first.data.params == {"seed": "7", "encoder.name": "pocket", "encoder.features": "[]"}
    assert set(first.data.metrics) == {"no_eot/objective", "eot/objective"}
    for arm in ("no_eot", "eot"):
        history = client.get_metric_history(first.info.run_id, f"{arm}/objective")
        assert {metric.step: metric.value for metric in history} == STEPS
    assert {file.path for file in client.list_artifacts(first.info.run_id)} == {"report.html", "views.png"}
    assert not (offline_folder / "mlruns").exists()
    no_secret(offline_folder)


def test_wandb(offline_folder):
    import wandb

    out = log_run(WandBConfig(mode="offline", project="cite"), offline_folder / "run")
    wandb.teardown()  # W&B's own process writes the end of its log after `finish` has returned
    (folder,) = (out / "wandb").glob("offline-run-*")
    assert (folder / "files" / "report.html").read_text() == "a page"
    (log,) = folder.glob("run-*.wandb")
    rows, config = history(log)
    for arm in ("no_eot", "eot"):
        result = {int(row[f"{arm}/step"]): float(row[f"{arm}/objective"]) for row in rows if f"{arm}/step" in row}
        assert result == pytest.approx(STEPS)
    assert config["seed"] == "7"
    assert wandb.run is None  # the run of a notebook is not replaced
    assert not list(folder.rglob("wandb-metadata.json")) and not list(folder.rglob("requirements.txt"))
    assert socket.gethostname().encode() not in log.read_bytes() or len(socket.gethostname()) < 6
    no_secret(offline_folder)


def history(log):
    """The rows and the configuration in W&B's own log of an offline run."""
    from wandb.proto import wandb_internal_pb2

    rows, config = [], {}
    for data in records(log.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({item.key or ".".join(item.nested_key): item.value_json for item in record.history.item})
        elif record.WhichOneof("record_type") == "run":
            config |= {item.key: item.value_json for item in record.run.config.update}
    return rows, config


def records(content, block=1 << 15, head=7):
    """The records of a log in LevelDB's format: blocks of 32 KiB, each piece with checksum, length and kind."""
    at, message = head, b""
    while at + head <= len(content):
        if block - at % block < head:  # the rest of a block is too small for a piece
            at += block - at % block
            continue
        size, kind = struct.unpack("<HB", content[at + 4 : at + head])
        message += content[at + head : at + head + size]
        at += head + size
        if kind in (1, 4):  # whole, or the last piece of several
            yield message
            message = b""


def test_unreachable_server_gives_a_one_line_error(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    with pytest.raises(ValueError, match="`tracker=mlflow` could not be started"):
        tracker(MLflowConfig(uri="http://127.0.0.1:9", experiment="x"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_libraries_print_nothing_during_a_run(tmp_path):
    code = (
        "import pathlib, sys\nfrom attacks.runtime.tracking import started\nfrom attacks.schema.tracker import *\n"
        "for node in (TensorBoardConfig(), MLflowConfig(experiment='x'), WandBConfig(mode='offline', project='x')):\n"
        "    out = pathlib.Path(sys.argv[1]) / node.name\n    out.mkdir()\n"
        "    (out / 'report.html').write_text('a page')\n"
        "    (result,) = started(node, out, out, {}).values()\n"
        "    result.log_scalars(0, {'a': 1.0}, 'eot')\n    result.log_artifact(out / 'report.html')\n"
        "    result.close()\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert process.stdout == "" and [line for line in process.stderr.splitlines() if "oneDNN" not in line] == []


def test_another_process_goes_on_in_the_same_run(offline_folder):
    for node in (MLflowConfig(experiment="x"), WandBConfig(mode="offline", project="x"), TensorBoardConfig()):
        out, ids = offline_folder / node.name / "run", set()
        out.mkdir(parents=True)
        for step in range(2):
            result = tracker(node, out)
            ids |= {adapter.run_id for adapter in result.others.values()}
            result.log_scalars(step, {"objective": 1.0}, "eot")
            result.close(failed=step == 0)
        assert len(ids) == 1
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{offline_folder}/mlflow/mlflow.db")
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert run.info.status == "FINISHED"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "eot/objective")] == [0, 1]
