"""The files that a run may write, as its manifest lists them."""

from collections.abc import Mapping
from typing import Any


def listed(manifest: Mapping[str, Any]) -> list[str]:
    """Their paths in the run directory."""
    return list(manifest.get("artefacts", {}).get("files", []))
