"""The cache of a gallery's embeddings: a read equals what the encoder computes, or is rejected."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attacks.data.gallery import Pictures, gather, on_shelf
from attacks.encoders.engine import Decision
from attacks.evaluation.scores import embed
from attacks.experiment.bench import Place, bench_of
from attacks.experiment.embeddings import BLOCK, KEY, cache_of, embed_gallery
from attacks.runtime.distributed import World
from attacks.runtime.values import write_values
from attacks.schema.validate import validate
from attacks.study.assembly import build
from tests.helpers.galleries import all_pictures
from tests.helpers.sampling import mostly_slow
from tests.schema.test_configs import composed

SIZE, CPU = 16, torch.device("cpu")
IDENTITY, PLAIN = {"name": "pocket"}, Decision()


class Net(nn.Module):
    """A small encoder whose output depends, in its last bits, on the batch; it counts its pictures."""

    def __init__(self, seed=0, scale=1.0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Linear(3 * SIZE * SIZE, 7)
        self.scale, self._seen = scale, []
        self.eval().requires_grad_(False)

    def forward(self, images):
        self._seen.append(len(images))
        return self.layer(images.flatten(1)) * self.scale + len(images) * 1e-7

    def counts(self):
        batches_so_far, self._seen = self._seen, []
        return batches_so_far


def pictures(count, seed=0):
    levels = torch.randint(0, 256, (count, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(seed))
    return Pictures(tuple(f"{seed}-{i}" for i in range(count)), levels.float() / 255)


def cache(folder, net, identity=IDENTITY, decision=PLAIN):
    result = cache_of(folder and str(folder), net, identity, pictures(1).images, decision)
    net.counts()
    return result


GALLERY = on_shelf(pictures(11).shelf())


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_a_cache_hit_equals_a_miss_bit_for_bit_and_takes_no_pass(tmp_path, chunk):
    net = Net()
    plain = embed(all_pictures(GALLERY), net, CPU, min(chunk, BLOCK))
    net.counts()
    for expected in (11, 0, 0):
        result = embed_gallery(GALLERY, net, CPU, chunk, cache(tmp_path, net))
        assert torch.equal(result.rows, plain) and not result.notes
        assert sum(net.counts()) == result.passes == expected and result.cached == 11 - expected


def test_only_one_of_several_processes_writes_the_cache(tmp_path):
    net = Net()
    assert embed_gallery(GALLERY, net, CPU, 4, cache(tmp_path, net), keep=False).passes == 11
    assert not list(tmp_path.iterdir())
    embed_gallery(GALLERY, net, CPU, 4, cache(tmp_path, net))
    assert (
        embed_gallery(GALLERY, net, CPU, 4, cache(tmp_path, net), keep=False).cached == 11
    )  # but all processes read


@pytest.mark.parametrize("rank", mostly_slow([1, 0], 2))
def test_only_the_first_process_of_a_run_writes_the_cache(monkeypatch, tmp_path, rank):
    """Otherwise a process could read what another has just written, and count it as saved."""
    run = validate(composed("config=smoke", "data.count=1", "sanity=none"))
    calls = []

    def interrupt(*_, keep, **__):
        calls.append(keep)
        raise InterruptedError

    monkeypatch.setattr("attacks.experiment.bench.embed_gallery", interrupt)
    with pytest.raises(InterruptedError):
        study = build(run)
        bench_of(study, study.encoder, PLAIN, Place(tmp_path, World(rank, 2)))
    assert calls == [rank == 0]


def test_without_a_folder_there_is_no_cache():
    assert cache(None, Net()) is None


def test_rows_are_in_the_gallerys_order_and_do_not_depend_on_the_queries(tmp_path):
    net, shelf_pictures = Net(), pictures(11).shelf()
    shared_cache = cache(tmp_path, net)
    embed_gallery(on_shelf(shelf_pictures), net, CPU, 4, shared_cache)
    net.counts()
    queries = Pictures(("one", "new"), torch.cat([pictures(11).images[5:6], pictures(1, seed=3).images])).shelf()
    gallery = gather(queries, shelf_pictures)
    result = embed_gallery(gallery, net, CPU, 4, shared_cache)
    assert net.counts() == [1] and result.cached == 11  # the new one alone
    reference = torch.cat([net(image[None]) for image in all_pictures(gallery)])
    torch.testing.assert_close(result.rows, reference)
    assert gallery.names[:3] == ("one", "new", "0-0") and len(gallery) == 12


def patched():
    """An encoder with other code of the same name: no weight and no setting says so."""
    net = Net()
    net.register_forward_hook(lambda module, images, answer: answer + 1e-3)
    return net


OTHER = {
    "weights": {"net": Net(seed=1)},
    "a setting": {"net": Net(scale=2.0)},
    "code": {"net": patched()},
    "the configuration": {"identity": {"name": "pocket", "weights": "other.safetensors"}},
    "how it is run": {"decision": Decision(layout="channels_last")},
}


@pytest.mark.parametrize("part", OTHER)
def test_another_encoder_does_not_hit_the_cache(tmp_path, part):
    embed_gallery(GALLERY, Net(), CPU, 4, cache(tmp_path, Net()))
    changes = {"net": Net()} | OTHER[part]
    result = embed_gallery(GALLERY, changes["net"], CPU, 4, cache(tmp_path, **changes))
    assert (result.passes, result.cached) == (11, 0) and not result.notes


def test_other_pictures_or_another_order_do_not_hit_the_cache(tmp_path):
    net = Net()
    embed_gallery(GALLERY, net, CPU, 20, cache(tmp_path, net))
    edited_pictures = pictures(11)
    edited_pictures.images[10, 0, 0, 0] = 1 - edited_pictures.images[10, 0, 0, 0]
    flipped_pictures = Pictures(pictures(11).names, pictures(11).images.flip(0))
    for other in (edited_pictures, flipped_pictures):
        assert embed_gallery(on_shelf(other.shelf()), net, CPU, 20, cache(tmp_path, net)).cached == 0
    renamed_pictures = Pictures(tuple("abcdefghijk"), pictures(11).images)
    assert embed_gallery(on_shelf(renamed_pictures.shelf()), net, CPU, 20, cache(tmp_path, net)).cached == 11


HARM = {
    "empty": lambda path: path.write_bytes(b""),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "a huge header": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    "no header": lambda path: save_file({"0": torch.zeros(11, 7)}, path),
    "too few": lambda path: write_values(path, torch.zeros(10, 7), KEY),
    "no tensor": lambda path: write_values(path, [7], KEY),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("harm", HARM)
def test_an_invalid_cache_file_is_noted_and_rewritten(tmp_path, harm):
    net = Net()
    first = embed_gallery(GALLERY, net, CPU, 20, cache(tmp_path, net))
    (path,) = tmp_path.iterdir()
    HARM[harm](path)
    result = embed_gallery(GALLERY, net, CPU, 20, cache(tmp_path, net))
    assert torch.equal(result.rows, first.rows) and result.passes == 11
    (note,) = result.notes
    assert "\n" not in note and str(tmp_path) in note
    if harm != "a folder":
        repeat = embed_gallery(GALLERY, net, CPU, 20, cache(tmp_path, net))
        assert repeat.cached == 11 and not repeat.notes
    assert not list(tmp_path.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_gives_a_note_and_no_error(tmp_path):
    net = Net()
    missing = dataclasses.replace(cache(tmp_path, net), folder=tmp_path / "gone")
    result = embed_gallery(GALLERY, net, CPU, 20, missing)
    assert result.passes == 11 and "cannot be kept" in result.notes[0]


def test_only_one_block_of_pictures_is_in_memory_at_a_time():
    shelf, calls = pictures(30).shelf(), []
    lazy = dataclasses.replace(shelf, load=lambda i: calls.append(i) or shelf.load(i))
    net = Net()
    batches = []
    net.register_forward_pre_hook(lambda module, images: batches.append((len(calls), len(images[0]))))
    embed_gallery(on_shelf(lazy), net, CPU, 8)
    assert batches == [(8, 8), (16, 8), (24, 8), (30, 6)]
