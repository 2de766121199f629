"""Fixtures of all families."""

import pytest


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, and an empty cache of the hub in `tmp_path`."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
