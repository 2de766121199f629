"""A gallery of embeddings from a file: its rows as of an array in memory, and one line for what is no such file."""

import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.data.gallery import Pictures, on_shelf, with_vectors
from attacks.data.vectors import read_vectors
from attacks.evaluation.retrieval import Rows, impostors
from attacks.experiment.embeddings import embed_gallery
from attacks.schema import groups
from attacks.schema.objective import AwayConfig, InfoNCEConfig
from attacks.schema.run import EvaluateConfig
from attacks.schema.task import RetrievalConfig
from attacks.schema.validate import Run
from attacks.study.task import check_gallery
from tests.run.test_malformed_files import npy


def make_array(folder, rows=9, width=4, kind="float32", names=None, ending=".txt"):
    array = np.random.default_rng(0).normal(size=(rows, width)).astype(kind)
    np.save(folder / "g.npy", array)
    texts = [f"n{i}" for i in range(rows)] if names is None else names
    (folder / f"g{ending}").write_text("".join(f"{name}\n" for name in texts))
    return array


def pictures(count=3):
    levels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    return Pictures(tuple("abc"[:count]), levels.float() / 255)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_rows_are_those_of_the_array_in_its_order(tmp_path, kind):
    array = make_array(tmp_path, kind=kind)
    vectors = read_vectors(tmp_path / "g.npy")
    assert np.array_equal(vectors.rows.numpy(), array) and vectors.names == tuple(f"n{i}" for i in range(9))
    assert vectors.labels is None and len(vectors) == 9
    make_array(tmp_path, kind=kind, names="abcdefghi")
    assert read_vectors(tmp_path / "g.npy").digest != vectors.digest


def nearest(rows, views):
    """Cosines in extended precision, with the scale taken out first."""
    wide = [(x / np.abs(x).max(1, keepdims=True)).astype(np.longdouble) for x in (rows.astype(np.longdouble), views)]
    unit = [x / np.sqrt((x * x).sum(1, keepdims=True)) for x in wide]
    return (unit[1] @ unit[0].T).astype(float)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_a_scale_changes_no_cosine_or_is_refused(tmp_path, kind):
    array, views = make_array(tmp_path, 9, 16).astype("float64"), np.random.default_rng(1).normal(size=(5, 16))
    outcomes = set()
    for exponent in (-1060, -500, -160, -140, -126, -60, -30, -20, -12, 0, 12, 60, 100, 126, 500, 1000):
        with np.errstate(over="ignore", under="ignore"):
            np.save(tmp_path / "g.npy", rows := np.ldexp(array, exponent).astype(kind))
        try:
            part = read_vectors(tmp_path / "g.npy").rows
        except ValueError as refusal:
            assert "scale the rows to length 1" in str(refusal)
            continue
        outcomes.add(exponent)
        target, reference = nearest(rows, views), Rows((torch.randn(2, 16), part))
        unit = reference.unit(torch.from_numpy(views))
        order = torch.arange(2, 11)
        single = 1e-6 if kind == "float64" else 1e-12  # rows in memory are in float32
        for output, error in (
            (reference.pick(order), 1e-12),
            (reference.unit(part), 1e-12),
            (reference.unit(reference[order]), single),
        ):
            assert np.abs((unit @ output.T).numpy() - target).max() < error
    assert {0, -12} <= outcomes and not outcomes & {-1060, -500, -140, 126, 500, 1000}


def test_identities_are_those_of_the_table(tmp_path):
    make_array(tmp_path, 3, names=["name,identity", "a,x", "b,", "c,x"], ending=".csv")
    gallery = with_vectors(pictures(2).shelf(), read_vectors(tmp_path / "g.npy"))
    assert gallery.vectors.labels == ("x", None, "x") and len(gallery) == 5
    numbers = gallery.label_numbers.tolist()
    assert numbers[2] == numbers[4] and len(set(numbers)) == 4


def test_a_gallery_with_vectors_embeds_only_its_pictures(tmp_path):
    array = make_array(tmp_path, 9, 32)
    queries = pictures()
    encoder = lambda images: images.flatten(1)[:, :32]  # noqa: E731
    gallery = with_vectors(queries.shelf(), read_vectors(tmp_path / "g.npy"))
    result = embed_gallery(gallery, encoder, torch.device("cpu"), 64)
    rows = torch.cat([encoder(queries.images), torch.from_numpy(array)])
    assert isinstance(result.rows, Rows) and result.passes == 3
    order = torch.tensor([11, 0, 3, 2])
    assert torch.equal(result.rows[order], rows[order])
    assert torch.allclose(impostors(result.rows), impostors(rows.double()), atol=1e-12)
    with pytest.raises(ValueError, match=r"`data.gallery` must hold .* 32 numbers a row; got 4"):
        make_array(tmp_path, 9, 4)
        narrow = with_vectors(queries.shelf(), read_vectors(tmp_path / "g.npy"))
        embed_gallery(narrow, encoder, torch.device("cpu"), 64)
    assert len(on_shelf(queries.shelf()).content) == 3 and len(gallery.content) == 4


@pytest.mark.parametrize(("query", "row", "count"), [(None, "", 1), (None, "x", 1), ("x", "x", 0), ("x", "y", 0)])
def test_an_embedding_of_a_query_as_something_else_is_refused(tmp_path, query, row, count):
    array = make_array(tmp_path, 4, 32, names=["name,identity", "a,", f"b,{row}", "c,z", "d,z"], ending=".csv")
    shelf, encoder = pictures(2).shelf(), lambda images: images.flatten(1)[:, :32]
    array[1] = 3 * encoder(pictures(2).images)[1]
    np.save(tmp_path / "g.npy", array)
    gallery = with_vectors(replace(shelf, labels=(None, query)), read_vectors(tmp_path / "g.npy"))
    words = "is the embedding of the picture 'b'"
    with pytest.raises(ValueError, match=words) if count else nullcontext():
        embed_gallery(gallery, encoder, torch.device("cpu"), 64)


def save(array):
    return lambda folder: np.save(folder / "g.npy", array, allow_pickle=True)


def cut(folder):
    file = folder / "g.npy"
    file.write_bytes(file.read_bytes()[:-9])


def reshape(shape):
    """Another shape in the header."""
    return lambda folder: (folder / "g.npy").write_bytes(npy(shape=shape))


def columns(folder):
    (folder / "g.txt").unlink()
    (folder / "g.csv").write_text("name,name\n" + "".join(f"{i},x\n" for i in range(9)))


BAD = {
    "pickle": (save(np.array([{}, 1], dtype=object)), "Python objects"),
    "no array": (lambda folder: (folder / "g.npy").write_bytes(b"no"), "must be a whole .npy"),
    "empty": (lambda folder: (folder / "g.npy").write_bytes(b""), "must be a whole .npy"),
    "cut": (cut, "must be a whole .npy"),
    "an npz": (lambda at: (np.savez(at / "z.npz", 1), (at / "z.npz").replace(at / "g.npy")), "must be a whole .npy"),
    "a negative side": (reshape((-9, 4)), "must be a whole .npy"),
    "two negative sides": (reshape((-9, -4)), "must be a whole .npy"),
    "a huge side": (reshape((2**62, 4)), "must be a whole .npy"),
    "a boolean side": (reshape((True, 4)), "must be a whole .npy"),
    "a list of numbers": (save(np.ones(9)), "must hold rows"),
    "integers": (save(np.ones((9, 4), dtype=int)), "must hold rows"),
    "other bytes": (save(np.ones((9, 4), dtype=">f4")), "must hold rows"),
    "infinite": (save(np.array([[1.0, 2], [np.inf, 1]])), "row 1"),
    "nan": (save(np.array([[np.nan, 2], [3, 1]])), "row 0"),
    "overflow": (save(np.array([[1.0, 2], [1e200, 1e200]])), "row 1"),
    "zero": (save(np.array([[1.0, 2], [0, 0]])), "row 1"),
    "too few names": (lambda folder: (folder / "g.txt").write_text("a\n"), "1 names for 9 rows"),
    "a name twice": (lambda folder: (folder / "g.txt").write_text("a\n" * 9), "'a': rename"),
    "no list": (lambda folder: (folder / "g.txt").unlink(), "there are 0"),
    "two lists": (lambda folder: (folder / "g.csv").write_text("name\n"), "there are 2"),
    "a column twice": (columns, "two columns of one name"),
    "bytes": (lambda folder: (folder / "g.txt").write_bytes(b"\xff\n" * 9), "UTF-8"),
    "no file": (lambda folder: (folder / "g.npy").unlink(), "is no file"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_such_file_is_refused_in_one_line(tmp_path, what):
    make_array(tmp_path)
    spoil, words = BAD[what]
    spoil(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(words)) as plus:
        read_vectors(tmp_path / "g.npy")
    assert str(plus.value).startswith("`data.gallery`") and "\n" not in str(plus.value)


def test_an_attack_that_compares_with_all_rows_is_refused(tmp_path):
    make_array(tmp_path)
    gallery = with_vectors(pictures().shelf(), read_vectors(tmp_path / "g.npy"))
    plain = {"task": RetrievalConfig(), "objective": AwayConfig(), "attack": groups.SingleConfig()}
    parts = {"attack": groups.SuiteConfig()}, {"evaluate": EvaluateConfig(failure=1)}
    for changes in ({"objective": InfoNCEConfig()}, *parts):
        with pytest.raises(ValueError, match="only for the judgement"):
            check_gallery(Run(**plain | changes), gallery)
    check_gallery(Run(**plain), gallery)
