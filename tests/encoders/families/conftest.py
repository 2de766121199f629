"""Fixtures of all families."""

import re

import pytest

from tests.helpers import tiny_models


def pytest_ignore_collect(collection_path, config):
    """The quick tests read no file that imports another library, for that takes seconds."""
    if collection_path.suffix != ".py" or "not families" not in config.option.markexpr:
        return None
    return bool(re.search(r"(?m)^(\w+ = )?pytest\.importorskip", collection_path.read_text())) or None


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and an empty cache of the hub in `tmp_path`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))


@pytest.fixture(scope="session")
def tiny_clips(tmp_path_factory):
    """open_clip with the tiny models among its own."""
    return tiny_models.register_clips(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Kind of a tiny model of transformers, or of an autoencoder of diffusers -> its folder."""
    folders = {}

    def folder(kind):
        if kind not in folders:
            save = tiny_models.save_vae if kind in tiny_models.VAES else tiny_models.save
            folders[kind] = save(kind, tmp_path_factory.mktemp(kind))
        return folders[kind]

    return folder
