"""What a page says of a run in words, and how it lays out its tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attacks.report.words import arm_names, share


class Tile(NamedTuple):
    """A share that stands large under the verdict."""

    name: str
    value: Mapping[str, float]


def verdict(content: Mapping[str, Any]) -> str:
    """One sentence with the interval that it rests on."""
    eot, plain = content["arms"]["eot"], content["arms"]["no_eot"]
    what = "a picture with the patch" if content["threat"].get("patch") else "an attacked picture"
    if not content["threat"]["targeted"]:
        return (
            f"Under held-out camera views the encoder recognises {what} {share(eot['recall_at_1'])}; "
            f"when the attack ignores the views, {share(plain['recall_at_1'])}."
        )
    return (
        f"Under held-out camera views {what} is taken for the attacker's target {share(eot['success'])}; "
        f"when the attack ignores the views, {share(plain['success'])}."
    )


def tiles(content: Mapping[str, Any]) -> list[Tile]:
    """The attacker's success, from doing nothing to doing all, and what wider views leave of it."""
    names = arm_names(content)
    found = [Tile(names[arm], row["success"]) for arm, row in content["arms"].items() if arm in names]
    wide = (content.get("wide") or {}).get("arms", {}).get("eot")
    return found + ([Tile("with EOT, wider views", wide["success"])] if wide else [])


def deployed(found: Mapping[str, Any], order: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The deployment matrix as a table for each arm, the attack with EOT first: a row for each codec, None where the
    pair is missing."""
    cells = {(cell["codec"], cell["resampler"]): cell["arms"] for cell in found.get("cells", [])}
    codecs, resamplers = (list(dict.fromkeys(pair[i] for pair in cells)) for i in (0, 1))
    arms = [arm for arm in reversed(order) if any(arm in each for each in cells.values())]

    def table(arm: str) -> dict[str, Any]:
        lines = [(codec, [cells.get((codec, each), {}).get(arm) for each in resamplers]) for codec in codecs]
        return {"resamplers": resamplers, "rows": lines}

    return [(arm, table(arm)) for arm in arms]


def command(manifest: Mapping[str, Any]) -> str:
    """The command line of the run, quoted for a shell; empty if the manifest does not say."""
    if "overrides" not in manifest:
        return ""
    words = list(map(str, manifest["overrides"]))
    if not any(word.startswith("config=") for word in words):
        words.insert(0, f"config={manifest.get('preset')}")
    return shlex.join(["python", "-m", "attacks.run", *words])


def protocol(content: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to repeat the run and to cite it, in words."""
    said = [
        ("seed", content["seed"]),
        ("views", f"{content['bank']['views']} held out; draws: {content['bank']['draws']}"),
        ("intervals", content["intervals"]),
        ("git revision", manifest.get("git")),
        ("device", manifest.get("device")),
        ("threads, processes", ", ".join(str(manifest.get(key, "?")) for key in ("threads", "processes"))),
        ("python", manifest.get("python")),
        ("platform", manifest.get("platform")),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())),
        *((f"{key} of the encoder", (content.get("encoder") or {}).get(key)) for key in ("sha256", "fingerprint")),
    ]
    said = said if manifest else said[:3]
    return [(what, str(words)) for what, words in said if words not in (None, "")]
