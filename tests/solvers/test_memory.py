"""When memory runs out, passes are halved, and the results are the same."""

import pytest
import torch

from attacks import Away, bank, evaluate
from attacks.data.gallery import on_shelf, tiles
from attacks.evaluation import layer_drift, mean_embedding
from attacks.evaluation.explanation import CountedEncoder, reach
from attacks.evaluation.scores import embed
from attacks.experiment.embeddings import Cache, embed_gallery
from attacks.objectives import Paired
from tests.helpers.faulty import net, pictures
from tests.helpers.solving import worst_views
from transforms import Affine, Compose

FITS = 2
CPU = torch.device("cpu")


class Small(torch.nn.Module):
    """An encoder with memory for a given number of pictures at once."""

    def __init__(self, fits=FITS):
        super().__init__()
        self.net, self.fits, self.training = net(), fits, False
        self.refusals = 0

    def forward(self, images):
        if len(images) > self.fits:
            self.refusals += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return self.net(images)


BANK = bank(Compose([Affine(degrees=20)]), 7, seed=0, purpose="evaluate")
PICTURES, FIVE = pictures(), pictures(5)
ANCHOR = net()(PICTURES)
WORST = {"objective": Away(), "transforms": BANK.transforms, "k": 9, "keep": 4, "chunk": 5}
LAYERS = {"net.1": "flat", "output": "flat"}


USERS = {
    "losses": lambda e: BANK.losses(PICTURES, ANCHOR, e, Away(), 5),
    "paired": lambda e: BANK.losses(PICTURES, ANCHOR, e, Paired(Away()), 5, untouched=PICTURES),
    "features": lambda e: BANK.features(PICTURES, e, 5),
    "evaluate": lambda e: evaluate(PICTURES, ANCHOR, ANCHOR, encoder=e, bank=BANK, chunk=5).cosine,
    "embed": lambda e: embed(FIVE, e, CPU, 5),
    "anchors": lambda e: mean_embedding(PICTURES, e, BANK, 5),
    "worst": lambda e: worst_views(PICTURES, ANCHOR, encoder=e, **WORST).losses,
    "drift": lambda e: layer_drift(e, PICTURES, {"eot": PICTURES.flip(0)}, BANK, LAYERS, chunk=5).cosine["eot"],
    "reach": lambda e: reach(CountedEncoder(e), PICTURES, ANCHOR, BANK, 5).sensitivity,
}


@pytest.mark.parametrize("name", USERS)
def test_passes_are_halved_when_memory_runs_out(name):
    small, large = Small(), Small(100)
    assert torch.allclose(USERS[name](small), USERS[name](large), atol=1e-5)
    assert small.refusals


@pytest.mark.parametrize("name", USERS)
def test_error_for_one_view_that_does_not_fit_names_the_keys_to_lower(name):
    message = r"`engine.chunk` cannot go lower: .*`data.size`.*Tried to allocate"
    with pytest.raises(MemoryError, match=message) as error:
        USERS[name](Small(0))
    assert "\n" not in str(error.value)


def test_gallery_embedded_in_smaller_passes_is_not_cached(tmp_path):
    gallery = on_shelf(tiles(64).only(range(20)).shelf())  # no block so small that it fits
    small, large = Small(3), Small(100)
    for encoder in (small, large):
        encoder.net = torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten())
    cache = Cache(tmp_path, "0", 192)
    result = embed_gallery(gallery, small, CPU, 5, cache)
    assert torch.allclose(result.rows, embed_gallery(gallery, large, CPU, 5).rows, atol=1e-6)
    assert not list(tmp_path.iterdir())
