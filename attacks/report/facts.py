"""The texts of a report about its run, and the layout of its tables."""

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from attacks.encoders.description import MODULE, description_rows
from attacks.inference import least_p
from attacks.report.words import count_text, p_value, radius, sample_counts, sample_words
from attacks.resizers.pipeline import GIVEN


def encoder_name(content: Mapping[str, Any]) -> str:
    """The encoder's name with its model; of a module from Python, its class."""
    encoder = content["encoder"]
    return str(encoder["model"] if encoder["name"] == MODULE else description_rows(encoder)[0][1])


def step_text(arm: Mapping[str, Any]) -> str:
    """The steps after which an arm's perturbations were chosen, such as "8 (4 to 16)"; empty if unknown."""
    if not (step := arm.get("step")):
        return ""
    median, low, high = (f"{step[key]:g}" for key in ("median", "least", "most"))
    return median if low == high else f"{median} ({low} to {high})"


def legend(content: Mapping[str, Any]) -> str:
    """The meaning of brackets and parentheses."""
    if sample_counts(content)[1] == 1:
        return f"In brackets: {content['intervals'].replace(' %', '%')}."
    text = "In brackets: 95% intervals over clusters. In parentheses: the smallest and the largest cluster, where"
    return f"{text} there is no interval."


def least_p_note(content: Mapping[str, Any]) -> str:
    """What rows share that have the smallest p value which their clusters allow; nothing where none has it."""
    values, count = [row["p"] for row in content["comparisons"] if row["p"] is not None], sample_counts(content)[1]
    least = len(values) * least_p(count)
    if not any(math.isclose(value, least) for value in values):
        return ""
    clusters = count_text(count, "cluster")
    return f" A p of {p_value(least)} is the smallest that {clusters} allow here: rows that share it may differ."


def within(axis: Mapping[str, Any], number: int) -> bool:
    """Whether a value of a coordinate is in the range of the attack."""
    low, high = sorted(axis["trained"])
    slack = 1e-6 * (high - low)
    return bool(low - slack <= axis["values"][number] <= high + slack)


def deployment_tables(deployment: Mapping[str, Any], order: Iterable[str]) -> list[tuple[str, dict[str, Any]]]:
    """A table for each arm in `order` and for the `difference` that EOT makes: rows of resamplers, None if absent."""
    cells = {(cell["codec"], cell["resampler"]): cell for cell in deployment.get("cells", [])}
    codecs, resamplers = (list(dict.fromkeys(pair[i] for pair in cells)) for i in (0, 1))
    values = {key: cell["arms"] | {"difference": cell["difference"]} for key, cell in cells.items()}
    tables = []
    for name in (*order, "difference"):
        rows = [(row, [values.get((codec, row), {}).get(name) for codec in codecs]) for row in resamplers]
        if any(any(row) for _, row in rows):
            tables.append((name, {"codecs": codecs, "rows": rows}))
    return tables


def command_line(manifest: Mapping[str, Any]) -> str:
    """The command line of the run, quoted for a shell; of a module or function from Python only the overrides."""
    overrides = list(map(str, manifest["overrides"]))
    if not any(override.startswith("config=") for override in overrides):
        overrides.insert(0, f"config={manifest['preset']}")
    return shlex.join([*([] if from_python(manifest) else ["python", "-m", "attacks.run"]), *overrides])


def from_python(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was given from Python, as (the part, its kind): the encoder, the pipeline, parts of the attack."""
    pipeline = manifest["config"].get("evaluate", {}).get("pipeline") or ""
    encoder = [("encoder", "module")] if manifest["encoder"]["name"] == MODULE else []
    nodes = ((group, manifest["config"].get(group, {})) for group in ("objective", "optimiser", "perturbation"))
    parts = [(group, "object") for group, node in nodes if ":" in str(node.get("model", ""))]
    return encoder + ([("pipeline", "function")] if pipeline.startswith(GIVEN) else []) + parts


def protocol(content: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings and versions needed to repeat and to cite the run."""
    views, parts = content["threat"]["views_per_step"], content["threat"].get("plugins", {})
    wide, bank = content["wide"], content["bank"]
    banks = f"{bank['views']} per picture, held out; draws: {bank['draws']}"
    banks += f"; and {wide['bank']['views']} of ranges {wide['factor']:g} times as wide" if wide else ""
    views_text = "as many views a step as their noise asks for" if views == "auto" else f"{views} views a step"
    if (start := content["threat"].get("start_from")) is not None:
        views_text += f"; started from {start['run']} (sha256 {start['sha256'][:12]}): {start['gradients']} before"
    rows = [
        ("preset", content["preset"]),
        ("seed", content["seed"]),
        ("pictures", sample_words(content)),
        ("gallery", gallery(content)),
        ("threat", _threat(content["threat"])),
        ("plugins", "; ".join(f"{name}, source {digest}" for name, digest in parts.items()) or None),
        ("gradients at attack", f"{content['threat']['gradients']} per picture, {views_text}"),
        ("views at evaluation", banks),
        ("intervals", content["intervals"].replace(" %", "%")),
        ("precision", _precision(manifest["engine"])),
        ("continued in float32", ", ".join(content.get("fell_back", ())) or None),
        ("git revision", manifest["git"]),
        ("device", manifest["device"]),
        ("threads, processes", f"{manifest['threads']}, {manifest['processes']}"),
        ("python", manifest["python"]),
        ("platform", manifest["platform"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())),
        *((f"{key} of the encoder", content["encoder"].get(key)) for key in ("sha256", "fingerprint")),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def gallery(content: Mapping[str, Any]) -> str:
    """What a view can be taken for: its number, where it is from, and what was joined and left out."""
    audit = content["gallery_audit"]
    count = content["gallery"]
    text = f"{count} classes" if content.get("classes") else count_text(count, "picture")
    text += f", {audit['source']}"
    if audit["near_duplicates"]:
        text += f"; {count_text(audit['near_duplicates'], 'pair')} of near duplicates (duplicates.csv)"
    if audit["alone"]:
        text += f"; {count_text(audit['alone'], 'picture')} alone in the identity, in no measure of retrieval"
    return text


def _threat(threat: Mapping[str, Any]) -> str:
    size = "" if threat["patch"] else f", eps {radius(threat)}"
    size += ", one for all pictures" if threat["shared"] else ""
    size += f", for each clip in {count_text(keys, 'key frame')}" if (keys := threat.get("keyframes")) else ""
    parts = [f"{threat['norm']}{size}", f"objective {threat['objective']}"]
    parts += [f"{key} {threat[key]}" for key in ("attack", "optimiser", "risk", "transforms") if threat.get(key)]
    return "; ".join(parts)


def _precision(engine: Mapping[str, Any]) -> str | None:
    """The precision of the attack and of its judgement; None where both are the encoder's own."""
    lower = engine["decision"]["precision"]
    if lower == "float32":
        return None
    trials = [trial for trial in engine["measurements"] if trial["settings"]["precision"] == lower and trial["taken"]]
    ratio, share = trials[0]["ratio"] if trials else None, ""
    if ratio is not None:
        share = f" (its rounding has {ratio:.1%} of the sampling noise's power; at most 15% is accepted)"
    return f"{lower} in the attack{share}, float32 without TF32 in its judgement"


def patch_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts of a patch in words (see `attacks.study.perturbation`)."""
    height, width = facts["texture"]
    shape = facts["shape"] if isinstance(facts["shape"], str) else f"a polygon of {len(facts['shape'])} corners"
    colours = "those of an 8-bit file" if facts["gamut"] is None else f"gamut {facts['gamut']}"
    covers = _shares(facts["area"], facts["anywhere"] is not None)
    if facts["sheet_area"] is not None:
        covers += f"; with the card around it {_shares(facts['sheet_area'], False)}"
    rows = [
        ("patch", f"{width} x {height} texels (width x height), {shape}, the same in all pictures"),
        ("its colours", colours + (", grey only" if facts["grey"] else "")),
        ("covers", covers),
        ("lies", _place(facts)),
        ("printed", _print_text(facts)),
    ]
    return rows if facts["target"] is None else [*rows, ("target", facts["target"])]


def _shares(area: Mapping[str, float], ranges: bool) -> str:
    low, mean, high = (f"{area[key]:.1%}" for key in ("low", "mean", "high"))
    if low == high:
        return f"{mean} of the picture"
    return f"{low} to {high} of the picture" + ("" if ranges else f", {mean} on average")


def _place(facts: Mapping[str, Any]) -> str:
    if facts["anywhere"] is not None:
        ranges = ", ".join(f"{key} {low:g} to {high:g}" for key, (low, high) in facts["anywhere"].items())
        return f"anywhere, at random in each view: {ranges} (scale: its shorter side against the picture's)"
    places = "one place" if facts["places"] == 1 else f"up to {facts['places']} places"
    return f"at {places} in each picture (placement.json)"


def _print_text(facts: Mapping[str, Any]) -> str:
    printer, width = facts["printer"], facts["width_mm"]
    stages = ", ".join(printer["stages"])
    text = f"printer={printer['name']}, colours {printer['colour']} ({printer['intent']})"
    if stages:
        text += f"; {stages}"
    elif printer["colour"] == "ideal":
        text = "the attack assumed no printer: a print that equals the file (printer=none)"
    text += f"; {width:g} mm wide" if width is not None else ""
    return text + ("; seen with its card" if facts["card"] else "")
