"""What a page says of a run in words, and how it lays out its tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attacks.encoders.description import MODULE, described
from attacks.report.words import BANKS, arm_names, share


class Tile(NamedTuple):
    """A share that stands large under the verdict."""

    name: str
    value: Mapping[str, float]


def verdict(content: Mapping[str, Any]) -> str:
    """One sentence with the interval that it rests on: who was tested, from which views, and what is left of what the
    encoder does with the untouched picture."""
    eot, plain, clean = (content["arms"][arm] for arm in ("eot", "no_eot", "clean"))
    what = "a picture with the patch" if content["threat"].get("patch") else "an attacked picture"
    seen = "Seen as the file is, without a camera"
    if content["bank"]["coordinates"]:
        seen = f"Seen from {content['bank']['views']} held-out views from the attack's own ranges"
    if not content["threat"]["targeted"]:
        return (
            f"{seen}, {_encoder(content)} recognises {what} {share(eot['recall_at_1'])}, and the untouched one in "
            f"{clean['recall_at_1']['mean']:.0%}; when the attack ignores the views, {share(plain['recall_at_1'])}."
        )
    return (
        f"{seen}, {_encoder(content)} takes {what} for the attacker's target {share(eot['success'])}, and the "
        f"untouched one in {clean['success']['mean']:.0%}; when the attack ignores the views, "
        f"{share(plain['success'])}."
    )


def _encoder(content: Mapping[str, Any]) -> str:
    """The name of the encoder in a sentence; the page of an old run does not know it."""
    encoder = content.get("encoder") or {}
    return f"the encoder {described(encoder)[0][1]}" if "model" in encoder else "the encoder"


def tiles(content: Mapping[str, Any]) -> list[Tile]:
    """The attacker's success, from doing nothing to doing all, and what wider views leave of it."""
    names = arm_names(content)
    result = [Tile(names[arm], row["success"]) for arm, row in content["arms"].items() if arm in names]
    wide = (content.get("wide") or {}).get("arms", {}).get("eot")
    return result + ([Tile("with EOT, wider views", wide["success"])] if wide else [])


def deployed(deployment: Mapping[str, Any], order: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The deployment matrix as a table for each arm, the attack with EOT first: a row for each codec, None where the
    pair is missing."""
    cells = {(cell["codec"], cell["resampler"]): cell["arms"] for cell in deployment.get("cells", [])}
    codecs, resamplers = (list(dict.fromkeys(pair[i] for pair in cells)) for i in (0, 1))
    arms = [arm for arm in reversed(order) if any(arm in each for each in cells.values())]

    def table(arm: str) -> dict[str, Any]:
        lines = [(codec, [cells.get((codec, each), {}).get(arm) for each in resamplers]) for codec in codecs]
        return {"resamplers": resamplers, "rows": lines}

    return [(arm, table(arm)) for arm in arms]


def command(manifest: Mapping[str, Any]) -> str:
    """The command line of the run, quoted for a shell; empty if the manifest does not say. Where the encoder was a
    module, the words alone: no command line can name that."""
    if "overrides" not in manifest:
        return ""
    overrides = list(map(str, manifest["overrides"]))
    if not any(override.startswith("config=") for override in overrides):
        overrides.insert(0, f"config={manifest.get('preset')}")
    return shlex.join([*([] if of_module(manifest) else ["python", "-m", "attacks.run"]), *overrides])


def of_module(manifest: Mapping[str, Any]) -> bool:
    """Whether the encoder was given as a module, from Python."""
    return (manifest.get("encoder") or {}).get("name") == MODULE


def protocol(content: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to repeat the run and to cite it, in words."""
    rows = [
        ("preset", content.get("preset")),
        ("seed", content["seed"]),
        ("pictures", f"{len(content['queries'])}, in a gallery of {content['gallery']}"),
        ("threat", _threat(content["threat"])),
        ("views at attack", "{views_per_step} per picture in each of {steps} steps".format_map(content["threat"])),
        ("views at evaluation", _banks(content)),
        ("intervals", content["intervals"]),
        ("git revision", manifest.get("git")),
        ("device", manifest.get("device")),
        ("threads, processes", ", ".join(str(manifest.get(key, "?")) for key in ("threads", "processes"))),
        ("python", manifest.get("python")),
        ("platform", manifest.get("platform")),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())),
        *((f"{key} of the encoder", (content.get("encoder") or {}).get(key)) for key in ("sha256", "fingerprint")),
    ]
    return [(what, str(value)) for what, value in rows if value not in (None, "", "?, ?")]


def _threat(threat: Mapping[str, Any]) -> str:
    """What the attacker may do, wants, and goes about it with."""
    size = "" if threat.get("patch") else f", eps {threat['eps']:.5g}"
    size += ", one for all pictures" if threat.get("shared") else ""
    parts = [f"{threat['norm']}{size}", f"objective {threat['objective']}"]
    parts += [f"{key} {threat[key]}" for key in ("attack", "optimiser", "risk", "transforms") if threat.get(key)]
    return "; ".join(parts)


def _banks(content: Mapping[str, Any]) -> str:
    wide, bank = content.get("wide"), content["bank"]
    text = f"{bank['views']} per picture, held out; draws: {bank['draws']}"
    return text + (f"; and {wide['bank']['views']} of ranges {wide['factor']:g} times as wide" if wide else "")


def compared(content: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The paired comparisons, those of one arm on one bank of views together."""
    rows, names = content.get("comparisons") or [], arm_names(content)
    groups = dict.fromkeys((row["bank"], row["arm"]) for row in rows)
    return [
        (
            f"{BANKS.get(bank, bank)}: {names.get(arm, arm)} less",
            [row for row in rows if (row["bank"], row["arm"]) == (bank, arm)],
        )
        for bank, arm in groups
    ]


def rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The same in words, for the head of the report."""
    height, width = facts["texture"]
    shape = facts["shape"] if isinstance(facts["shape"], str) else f"a polygon of {len(facts['shape'])} corners"
    table = [("patch", f"{width} x {height} texels (width x height), {shape}, the same in all pictures")]
    colours = "those of an 8-bit file" if facts["gamut"] is None else f"gamut {facts['gamut']}"
    table.append(("its colours", colours + (", grey only" if facts["grey"] else "")))
    table.append(("covers", _shares(facts["area"], facts["anywhere"] is not None)))
    if facts["sheet_area"] is not None:
        table[-1] = ("covers", f"{table[-1][1]}; with the card round it {_shares(facts['sheet_area'], False)}")
    table.append(("lies", _where(facts)))
    table.append(("printed", _printed(facts)))
    if facts["target"] is not None:
        table.append(("target", facts["target"]))
    return table


def _shares(area: dict[str, float], ranges: bool) -> str:
    low, mean, high = (f"{area[key]:.1%}" for key in ("low", "mean", "high"))
    if low == high:
        return f"{mean} of the picture"
    return f"{low} to {high} of the picture" + ("" if ranges else f", {mean} on average")


def _where(facts: dict[str, Any]) -> str:
    ranges_by_key = facts["anywhere"]
    if ranges_by_key is not None:
        ranges = ", ".join(f"{key} {low:g} to {high:g}" for key, (low, high) in ranges_by_key.items())
        return f"anywhere, in every view anew: {ranges} (scale: its shorter side against the picture's)"
    several = "one place" if facts["places"] == 1 else f"up to {facts['places']} places"
    return f"at {several} in each picture (placement.json)"


def _printed(facts: dict[str, Any]) -> str:
    printer, wide = facts["printer"], facts["width_mm"]
    stages = ", ".join(printer["stages"])
    if not stages and printer["colour"] == "ideal":
        text = "the attack saw no printer: what is printed looks as the file does (printer=none)"
    else:
        text = f"printer={printer['name']}, colours {printer['colour']} ({printer['intent']})"
        text += f"; {stages}" if stages else ""
    if wide is not None:
        text += f"; {wide:g} mm wide"
    return text + (f"; seen with its card, fiducials of group {facts['tags']}" if facts["card"] else "")
