"""The settings of runs, and those in which they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.runtime.untrusted import mapping, word


def run_settings(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The keys of a run's configuration that its numbers depend on, and their values as text."""
    items = {word(key): value for key, value in mapping(manifest.get("identity")).items() if isinstance(value, str)}
    return {
        key: word(value).strip('"')
        for key, value in items.items()
        if " " not in key and ("." in key or key == "seed") and not key.startswith("engine.")
    }


def differing_settings(runs: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """The keys in which settings differ, with the value in each. Where the choice of a group differs, as that of
    `perturbation`, it stands for all keys of the group."""
    keys = dict.fromkeys(key for settings in runs for key in settings)
    columns = {key: [settings.get(key) for settings in runs] for key in keys}
    columns = {key: column for key, column in columns.items() if len({*column}) > 1}
    groups = [key.removesuffix(".name") for key in columns if key.count(".") == 1 and key.endswith(".name")]
    columns = {key: column for key, column in columns.items() if key.partition(".")[0] not in groups} | {
        group: columns[f"{group}.name"] for group in groups
    }
    return columns
