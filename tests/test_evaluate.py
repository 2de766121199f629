"""An evaluation in batches: kept, taken up again, and the same to the last bit."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import attacks.experiment
import attacks.job
from attacks.batch import ARMS, Spent, arms_of, part_of
from attacks.batch_files import read_batch, write_batch
from attacks.build import build
from attacks.distributed import World
from attacks.run import compose
from attacks.tables import read_rows, write_rows
from tests.test_run import call

TINY = [
    "config=evaluate",
    "data.count=3",
    "data.size=64",
    "attack.steps=2",
    "attack.views=2",
    "evaluate.batch=2",
    "evaluate.views=4",
    "evaluate.refine=1",
    "sanity=none",
]
#: Without the parts that take the most of a small run.
LEAN = ["evaluate.maps=[]", "evaluate.curves=[]", "evaluate.left_out=0", "evaluate.deploy=0", "evaluate.explain=0"]
FILES = ("per_image.csv", "perturbation.safetensors", "adversarial.png", "steps.csv", "manifest.json")


def without_seconds(folder):
    content = json.loads((folder / "metrics.json").read_text())
    content.pop("cost")
    content.pop("costs")
    return content


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder}") == 0
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The same run, stopped in its second batch, after the first was written."""
    folder, real = tmp_path_factory.mktemp("half") / "run", attacks.experiment.attacked

    def attacked(bench, rows, number):
        if number == 1:
            raise KeyboardInterrupt
        return real(bench, rows, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks.experiment, "attacked", attacked)
        assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder}") == 130
    assert [path.name for path in (folder / "batches").iterdir()] == ["00000.safetensors"]
    return folder


@pytest.fixture
def stopped(half, tmp_path):
    """A copy of it, to do anything with."""
    return Path(shutil.copytree(half, tmp_path / "run"))


def test_a_run_that_was_stopped_ends_with_the_same_bytes(whole, stopped, monkeypatch):
    seen, real = [], attacks.experiment.attacked
    monkeypatch.setattr(attacks.experiment, "attacked", lambda b, rows, n: (seen.append(n), real(b, rows, n))[1])
    assert call(monkeypatch, f"resume={stopped}") == 0
    assert seen == [1]
    for name in FILES:
        mine, theirs = ((folder / name).read_bytes() for folder in (stopped, whole))
        if name == "manifest.json":
            mine, theirs = (json.loads(text) | {"overrides": []} for text in (mine, theirs))
        assert mine == theirs, name
    assert without_seconds(stopped) == without_seconds(whole)
    for path in sorted((whole / "pictures").rglob("*.png")):
        assert path.read_bytes() == (stopped / path.relative_to(whole)).read_bytes()
    assert not (stopped / "batches").exists()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: shutil.rmtree(folder), "there is none"),
        (lambda folder: (folder / "manifest.json").unlink(), "does not exist"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "has no `config`"),
        (lambda folder: (folder / "metrics.json").write_text("{}"), "is finished"),
        (lambda folder: (folder / "batches" / "00000.safetensors").write_bytes(b"no"), "cannot be taken up"),
        (lambda folder: edited(folder, lambda said: said["config"]["attack"].update(steps=3)), "another run"),
        (lambda folder: edited(folder, lambda said: said.pop("engine")), "no engine decision"),
        (lambda folder: edited(folder, lambda said: said["config"].update(_target_="os.system")), "_target_"),
        (
            lambda folder: edited(
                folder, lambda said: said["config"].update(encoder={"name": "torchscript", "model": "x.pt"})
            ),
            "encoder.model=x.pt",
        ),
        (
            lambda folder: edited(
                folder,
                lambda said: said["config"].update(tracker={"name": "wandb", "mode": "online", "project": "x"}),
            ),
            "tracker.mode=online",
        ),
    ],
    ids=["gone", "bare", "list", "finished", "torn", "changed", "engine", "code", "program", "sends"],
)
def test_what_cannot_be_taken_up_is_said_in_a_line(harm, words, stopped, monkeypatch, capsys):
    harm(stopped)
    assert call(monkeypatch, f"resume={stopped}") == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(said) == 1 and words in said[0]


def test_batches_are_not_taken_up_beside_another_gallery(tmp_path, monkeypatch, capsys):
    """Somebody adds a picture to the folder before going on: half of the table would be judged beside another one."""
    pictures, out, real = tmp_path / "pictures", tmp_path / "run", attacks.experiment.attacked
    pictures.mkdir()
    for at, name in enumerate("abc"):
        pixels = torch.randint(256, (64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(at))
        Image.fromarray(pixels.numpy()).save(pictures / f"{name}.png")
    (tmp_path / "two.txt").write_text("pictures/a.png\npictures/b.png\n")

    def attacked(bench, rows, number):
        if number == 1:
            raise KeyboardInterrupt
        return real(bench, rows, number)

    words = ["config=smoke", "data=folder", f"data.path={tmp_path / 'two.txt'}", f"data.gallery={pictures}"]
    words += ["data.size=64", "attack.steps=1", "evaluate.views=2", "evaluate.refine=0", "evaluate.batch=1"]
    with monkeypatch.context() as patch:
        patch.setattr(attacks.experiment, "attacked", attacked)
        assert call(patch, *words, f"hydra.run.dir={out}") == 130
    Image.new("RGB", (64, 64), (200, 30, 30)).save(pictures / "0.png")
    assert call(monkeypatch, f"resume={out}") == 1
    assert "another run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_died_over_its_report_is_not_finished(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(attacks.job, "write_report", die)
        assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder}") == 130
    assert not (folder / "report.html").exists() and not (folder / "metrics.json").exists()
    assert call(monkeypatch, f"resume={folder}") == 0
    assert (folder / "report.html").exists() and without_seconds(folder) == without_seconds(whole)


def test_what_only_the_first_process_writes_asks_no_other(tmp_path, monkeypatch):
    """A broadcast that the others do not take part in waits for ever."""
    world, writing = World(), []
    real = World.broadcast

    def broadcast(self, tensor):
        assert not (writing and self is world), "only the first process is here"
        return real(self, tensor)

    def alone(write):
        def run(*given):
            writing.append(True)
            write(*given)
            writing.pop()

        return run

    monkeypatch.setattr(World, "broadcast", broadcast)
    monkeypatch.setattr(attacks.job, "join", lambda: world)
    for module in (attacks.experiment, attacks.job):
        monkeypatch.setattr(module, "_write", alone(module._write))
    words = ["config=smoke", "attack.steps=1", "data.size=64", "evaluate.views=2", "evaluate.refine=0"]
    assert call(monkeypatch, *words, f"hydra.run.dir={tmp_path / 'run'}") == 0


def edited(folder, change):
    path = folder / "manifest.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def test_a_resumed_run_takes_no_other_setting(stopped, monkeypatch, capsys):
    assert call(monkeypatch, f"resume={stopped}", "attack.steps=3") == 1
    assert "drop 'attack.steps=3'" in capsys.readouterr().err


def test_every_arm_stands_in_every_table_and_paid_alike(whole):
    content = json.loads((whole / "metrics.json").read_text())
    assert tuple(content["arms"]) == tuple(content["wide"]["arms"]) == ARMS
    costs = content["costs"]
    # As many gradients with all views, without views, and with one view a step: 3 pictures, 2 steps, 2 views.
    assert [costs[arm]["backward"] for arm in ("eot", "no_eot", "one_view")] == [12, 12, 12]
    for key in ("forward", "backward"):
        assert sum(cost[key] for cost in costs.values()) == content["cost"][key]
    rows = read_rows(whole / "per_image.csv")
    assert len(rows) == 2 * len(ARMS) * 3
    for arm in ARMS:
        own = [float(row["cosine"]) for row in rows if (row["bank"], row["arm"]) == ("same", arm)]
        assert content["arms"][arm]["cosine"]["mean"] == pytest.approx(sum(own) / 3, abs=1e-12)


def test_the_wide_bank_holds_the_range_of_the_other(whole):
    content = json.loads((whole / "metrics.json").read_text())
    same, wide = content["bank"]["ranges"], content["wide"]["bank"]["ranges"]
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(wide, same, strict=True)) and same != wide


def test_a_batch_comes_back_as_it_was_written(stopped, tmp_path):
    path = stopped / "batches" / "00000.safetensors"
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        key = file.metadata()["key"]
    found = read_batch(path, key)
    write_batch(tmp_path / "batches" / "0.safetensors", found, key)
    again = read_batch(tmp_path / "batches" / "0.safetensors", key)
    assert (again.rows, again.trace, again.costs) == (found.rows, found.trace, found.costs)
    assert all(torch.equal(again.saved[arm], found.saved[arm]) for arm in found.saved)
    with pytest.raises(ValueError, match="another run"):
        read_batch(path, "other")


def test_batches_have_noise_of_their_own(whole):
    def change(name):
        clean, noisy = (
            torch.tensor(list(Image.open(path).convert("RGB").tobytes()), dtype=torch.int16)
            for path in (whole / "pictures" / "clean" / name, whole / "pictures" / "noise" / name)
        )
        return noisy - clean

    names = json.loads((whole / "metrics.json").read_text())["queries"]
    first, _, third = (change(f"{name}.png") for name in names)
    assert (first.float() * third.float()).mean() < 0.2 * first.float().square().mean()


def test_parts_of_some_pictures():
    run = compose("evaluate", ["data.count=3"])
    parts = build(run)
    some = part_of(parts, [2, 0])
    assert some.queries.names == (parts.queries.names[2], parts.queries.names[0])
    assert torch.equal(some.truth, parts.truth[[2, 0]])
    assert torch.equal(some.queries.images, parts.queries.images[[2, 0]])


def test_the_arms_that_a_run_asks_for():
    assert arms_of(compose("evaluate")) == ARMS
    assert arms_of(compose("quickstart")) == tuple(arm for arm in ARMS if arm != "one_view")


def test_what_is_spent_adds_up():
    assert Spent(1, 2, 0.5) + Spent(3, 4, 1.0) == Spent(4, 6, 1.5)


def test_rows_read_back_bit_for_bit(tmp_path):
    rows = [{"name": 'a "b",\n<c>', "value": 0.1 + 0.2, "whole": 3, "yes": True, "none": None}]
    write_rows(tmp_path / "rows.csv", rows)
    (found,) = read_rows(tmp_path / "rows.csv")
    assert found == {"name": rows[0]["name"], "value": repr(0.1 + 0.2), "whole": "3", "yes": "1", "none": ""}
    assert float(found["value"]) == rows[0]["value"]
    with pytest.raises(ValueError, match="same keys"):
        write_rows(tmp_path / "rows.csv", [{"a": 1}, {"b": 2}])


@pytest.mark.slow
def test_two_seeds_differ_by_less_than_the_interval_says(tmp_path, monkeypatch):
    """In 95 of 100 cases the mean of another seed (other views, noise, starts) lies in the interval of this one."""
    small = ["config=evaluate", "data.count=8", "data.size=64", "attack.steps=8", "evaluate.refine=0", "sanity=none"]
    small += ["evaluate.one_view=false", "evaluate.batch=8"]
    tables = []
    for seed in range(5):
        folder = tmp_path / str(seed)
        assert call(monkeypatch, *small, *LEAN, f"seed={seed}", f"hydra.run.dir={folder}") == 0
        content = json.loads((folder / "metrics.json").read_text())
        tables.append({"same": content["arms"], "wide": content["wide"]["arms"]})
    held = [
        one[bank][arm][measure]["low"] <= other[bank][arm][measure]["mean"] <= one[bank][arm][measure]["high"]
        for one in tables
        for other in tables
        if one is not other
        for bank in one
        for arm in one[bank]
        for measure in ("cosine", "recall_at_1", "mrr", "success")
    ]
    assert len(held) == 5 * 4 * 2 * 4 * 4
    assert sum(held) >= 0.95 * len(held)
