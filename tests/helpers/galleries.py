"""The pictures of a gallery."""

from dataclasses import replace

import torch

from attacks.data.gallery import Pictures, on_shelf


def all_pictures(gallery):
    """Every row's picture, read by itself: (G,3,H,W)."""
    return torch.cat([gallery.shelves[k].read([i]) for k, i in gallery.positions])


def noise(seed, height=20, width=20):
    """An 8-bit picture."""
    return torch.randint(0, 256, (3, height, width), generator=torch.Generator().manual_seed(seed)).float() / 255


def gallery_of(identity):
    """A gallery of pictures of noise with these identities."""
    levels = torch.randint(256, (len(identity), 3, 4, 4), generator=torch.Generator().manual_seed(0))
    images = levels.float() / 255
    shelf = Pictures(tuple(map(str, range(len(identity)))), images).shelf()
    return on_shelf(replace(shelf, labels=tuple(map(str, identity))))
