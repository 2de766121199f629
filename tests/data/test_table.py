"""Tables that drive a run: a target and a mask for each row, columns without use, and a table to begin with."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from attacks.commands import main
from attacks.data.images import as_path, save_image
from attacks.data.listing import list_entries
from attacks.data.pictures import masks_of
from attacks.evaluation.classes import Classes
from attacks.objectives.aim import Knowledge
from attacks.run import compose
from attacks.schema.objective import TowardConfig
from attacks.study.assembly import build
from attacks.study.data import data, idle_columns, targeted
from attacks.study.objective import aim_of
from attacks.study.perturbation import perturb
from tests.helpers.galleries import all_pictures, noise
from transforms import Compose

SIZE, EYE = 24, torch.eye(3)
ROWS = ["a.png,e.png,mask-a.png", "b.png,f.png,mask-b.png", "c.png,a.png,mask-c.png"]


@pytest.fixture
def mine(tmp_path):
    for i, name in enumerate("abcdef"):
        save_image(tmp_path / f"{name}.png", noise(i, SIZE, 40))
        mask = torch.zeros(3, SIZE, 40)
        mask[..., 10 + i : 20 + i] = 1
        save_image(tmp_path / f"mask-{name}.png", mask)
    Image.open(tmp_path / "b.png").save(tmp_path / "b.jpg", quality=95)
    return tmp_path


def config(path, *words):
    return compose("smoke", ["data=folder", f"data.path={path}", f"data.size={SIZE}", "data.count=null", *words])


def write(path, rows, head="path,target,mask"):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def goals(path, target="table"):
    """The queries of a table, its gallery with the targets, and their rows."""
    queries, gallery, truth = data(config(path).data)
    return queries, *targeted(target, gallery, truth, 0, SIZE, entries=queries.entries)


def test_the_anchor_of_each_row_is_the_embedding_of_its_target(mine):
    queries, gallery, goal = goals(write(mine / "x.csv", ROWS))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 8)).eval().requires_grad_(False)
    embeddings = encoder(all_pictures(gallery))
    knowledge = Knowledge(queries.images, embeddings[:3], embeddings, torch.arange(3), goal)
    anchor = aim_of(TowardConfig(target="table"), knowledge, encoder, Compose(), 0).anchor
    for row, target in enumerate([mine / "e.png", mine / "f.png", mine / "a.png"]):
        image = data(config(target).data)[0].images
        torch.testing.assert_close(anchor[row : row + 1], encoder(image), rtol=1e-5, atol=1e-6)
        _, one_gallery, one_goal = goals(write(mine / "y.csv", [ROWS[row]]), str(target))
        assert torch.equal(all_pictures(one_gallery)[one_goal], image)
        assert gallery.clusters[goal[row]] == one_gallery.clusters[one_goal] == target.name


def test_a_wrong_target_is_refused_with_its_line(mine):
    for target, message in {
        "b.png": r"`target` is itself the attacked picture, .*'b\.png'",
        "b.jpg": r"`target` is itself the attacked picture, or shows the same",
        "none.png": r"`target`: .*none\.png` does not exist",
        "": r"the cell `target` is empty",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=rf"^x\.csv line 3: {message}"):
            goals(write(mine / "x.csv", ["a.png,e.png", f"b.png,{target}"], "path,target"))


def test_the_target_of_each_row_may_be_a_class(mine):
    entries, classes = list_entries(write(mine / "x.csv", ["a.png,2,", "b.png,0,"]))[0], Classes(("0", "1", "2"), EYE)
    assert targeted("table", classes, torch.tensor([0, 1]), 0, SIZE, entries=entries)[1].tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"^x\.csv line 3: `target` is the class of one"):
        targeted("table", classes, torch.tensor([0, 0]), 0, SIZE, entries=entries)


def test_each_row_changes_only_where_its_mask_is_light_and_idle_columns_are_named(mine):
    path = write(mine / "x.csv", [f"{row},7,tall" for row in ROWS], "path,target,mask,height,note")
    run = config(path, "perturbation.mask=table")
    queries, ball, light = data(run.data)[0], torch.ones(3, 3, SIZE, SIZE), torch.zeros(3, 1, SIZE, SIZE)
    for row in range(3):
        light[row, ..., 2 + row : 12 + row] = 1  # the square begins at column 8
    for rows in ([0, 1, 2], [2, 0]):
        delta = perturb(run, queries).take(torch.tensor(rows)).project(ball[rows], ball[rows] / 2)
        assert torch.equal((delta != 0).float(), light[rows].expand_as(delta))
    assert "not used: height, note" in queries.notes[0]
    assert [note.partition(": ")[2] for note in idle_columns(run, queries)] == ["target (objective.target=table)"]


def test_each_row_has_the_radius_of_its_cell_in_files_and_in_the_record(mine):
    cells = ("2/255", "8/255", "0.0157")
    path = write(mine / "x.csv", [f"{name}.png,{cell}" for name, cell in zip("abc", cells, strict=True)], "path,eps")
    run = config(path, "perturbation.eps=table")
    queries = data(run.data)[0]
    sets, images = perturb(run, queries), queries.images
    change = (
        (sets.quantise(sets.noise(images, torch.Generator().manual_seed(1)), images) * 255).abs().flatten(1).amax(1)
    )
    assert change.round().tolist() == [2, 8, 4] and sets.eps == 8 / 255
    rooms = sets.take(torch.tensor([2, 0]))
    assert (rooms.eps * rooms.shares).tolist() == pytest.approx([0.0157, 2 / 255], rel=1e-12)


@pytest.mark.parametrize(
    ("cell", "keys", "message"),
    [
        ("", [], "line 3: the cell `eps` is empty"),
        ("8", [], r"line 3: `perturbation.eps` must lie in \(0, 1\], got 8; did you mean 8/255"),
        ("28dB", [], "line 3: `perturbation.eps` must be a number or a fraction such as 8/255; got '28dB'"),
        ("0.1", ["perturbation.shared=true"], "`perturbation.eps` does not go with perturbation.shared=true"),
        ("0.1", ["attack=radius"], "`perturbation.eps` does not go with attack=radius"),
        ("0.1", ["data.size=null"], "`perturbation.eps` does not go with data.size=null"),
    ],
)
def test_a_radius_by_row_that_cannot_be_is_refused_with_its_line(mine, cell, keys, message):
    write(mine / "x.csv", ["a.png,0.1,7", f"b.png,{cell},7"], "path,eps,note")
    run = config(mine / "x.csv", "perturbation.eps=table", *keys)
    with pytest.raises(ValueError, match=message):
        build(run)


def test_mappings_become_a_table_with_its_files(mine):
    images, mask = torch.stack([noise(i, SIZE, SIZE) for i in range(3)]), torch.eye(SIZE) > 0
    first = {"image": images[0], "label": 4, "target": images[2], "mask": mask, "split": "fit", "bbox": [1, 2]}
    second = {"image": mine / "b.png", "label": 5, "target": mine / "a.png", "mask": mask[None], "split": "judge"}
    path = as_path([first, second], mine / "out")
    (first_row, second_row), notes = list_entries(path)
    queries, gallery, goal = goals(path)
    assert [first_row.label, second_row.label, first_row.split, second_row.split, second_row.path] == [
        "4",
        "5",
        "fit",
        "judge",
        mine / "b.png",
    ]
    assert torch.equal(queries.images[0], images[0]) and torch.equal(all_pictures(gallery)[goal[0]], images[2])
    assert torch.equal(masks_of([first_row], SIZE)[0, 0] > 0, mask) and "not used: bbox" in notes[0]


def test_a_parquet_file_is_a_csv_file(mine):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"path": ["a.png", "b.png"], "weight": [1.0, 2.5], "identity": [3, None], "note": [b"x", None]}
    parquet.write_table(arrow.table(columns), mine / "x.parquet")
    files = [mine / "x.parquet", write(mine / "x.csv", ["a.png,1.0,3,", "b.png,2.5,,"], "path,weight,identity,note")]
    rows, same = ([replace(row, where="") for row in list_entries(file)[0]] for file in files)
    assert rows == same


def test_the_command_writes_a_table_of_a_folder(mine):
    for name in ("a.png", "b.png", "b.jpg"):
        (mine / "all" / name[0]).mkdir(parents=True, exist_ok=True)
        (mine / name).rename(mine / "all" / name[0] / name)
    out = mine / "lists" / "x.csv"
    assert main(["table", str(mine / "all"), "--out", str(out)]) == 0
    table, folder = (list_entries(path)[0] for path in (out, mine / "all"))
    assert [(row.path, row.label) for row in table] == [(row.path, row.label) for row in folder]
    assert table[0].cluster is None and table[1].cluster == table[2].cluster == "b/b.jpg"
    assert main(["table", str(mine / "all"), "--out", str(out)]) == 1
