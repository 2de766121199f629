"""The report of a run: one HTML page that fetches nothing and runs no scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attacks.encoders.description import description_rows
from attacks.gate.verdict import verdict_rows
from attacks.report.environment import environment
from attacks.report.facts import (
    command_line,
    comparison_groups,
    deployment_tables,
    fact_tiles,
    from_python,
    gallery,
    legend,
    patch_rows,
    protocol,
    verdict,
)
from attacks.report.figures import drift_curve, heat_map, loss_curve, radii_curve, response_curve
from attacks.report.sheets import LARGEST, Picture, from_file, perturbation, picture_file
from attacks.report.words import arm_names, measure_groups
from attacks.runtime.files import write_text
from attacks.solvers.trace import Trace

COUNTS = {3: "Three", 4: "Four", 5: "Five"}


@dataclass(frozen=True)
class Images:
    """The pictures of a page; those that are None or empty are left out. `picture_name` is that of `sheet` and
    `perturbation`."""

    picture_name: str = ""
    sheet: Picture | None = None
    texture: Picture | None = None
    perturbation: Sequence[Picture] = ()
    explanations: Picture | None = None
    failures: Picture | None = None
    resized: Picture | None = None


class PageSection(NamedTuple):
    """A section of the page, `templates/sections/ID.html`: its name in the contents, and its heading."""

    id: str
    short: str
    title: str


def page(
    out: Path,
    content: Mapping[str, Any],
    manifest: Mapping[str, Any],
    warnings: Sequence[str],
    trace: Sequence[Trace],
    number: int | None = None,
) -> str:
    """`report.html` of a run directory, with its pictures: `views.png`, `patch.png`, `explanations.png`,
    `failure.png`, `deployment.png`, and `number` of `pictures/`, which is the one in `views.png`."""
    return render_page(content, manifest, warnings, trace, _images(out, content, manifest, number))


def write_report(out: Path, *values: Any) -> None:
    """Write `report.html` into a run directory; the values are those of `page`."""
    write_text(out / "report.html", page(out, *values))


def _images(out: Path, content: Mapping[str, Any], manifest: Mapping[str, Any], number: int | None) -> Images:
    """The pictures of a run directory."""
    patch, name = content["threat"]["patch"], "" if number is None else content["queries"][number]
    arms = f"{name} in {len(content['arms'])} arms, each as a file and from held-out views, with the cosine to its"
    example = content["explanations"]["pictures"][0] if content["explanations"] else "a picture"
    pictures: list[Picture] = []
    if number is not None and not patch:
        file = picture_file(content, manifest, number)
        pictures = perturbation(*(out / "pictures" / arm / file for arm in ("clean", "eot")))
    return Images(
        name,
        from_file(out / "views.png", f"{arms} clean embedding"),
        from_file(out / "patch.png", "The texture of the patch") if patch else None,
        pictures,
        from_file(out / "explanations.png", f"Explanations of {example} before and after the attack"),
        from_file(out / "failure.png", "The views that fail most, with the values of their coordinates"),
        from_file(out / "deployment.png", "An attacked picture, and what each resizer makes of it"),
    )


def render_page(
    content: Mapping[str, Any],
    manifest: Mapping[str, Any],
    warnings: Sequence[str] = (),
    trace: Sequence[Trace] = (),
    pictures: Images | None = None,
) -> str:
    """The page of a run, from the content of metrics.json and manifest.json, without its empty sections."""
    pictures, names = pictures or Images(), arm_names(content)
    wide, response, deployment = (content[key] or {} for key in ("wide", "response", "deployment"))
    patch = content["threat"]["patch"]
    template = environment().get_template("report.html")
    return template.render(
        metrics=content,
        names=names,
        warnings=warnings,
        verdict=verdict(content),
        gate=content["gate"],
        gate_rows=verdict_rows(content["gate"]) if content["gate"] else [],
        tiles=fact_tiles(content),
        legend=legend(content),
        sections=sections(content, pictures, bool(trace)),
        groups=measure_groups(content["arms"], content["chance"]),
        compared=comparison_groups(content),
        wide_groups=measure_groups(wide.get("arms", {}), content["chance"]),
        gallery=gallery,
        encoder=description_rows(content["encoder"]),
        patch_facts=patch_rows(patch) if patch else [],
        command=command_line(manifest),
        from_python=from_python(manifest),
        settings=" ".join(manifest["engine"]["settings"]),
        protocol=protocol(content, manifest),
        curve=loss_curve(trace, content["threat"]["objective"], content["arms"]) if trace else None,
        drift_curve=drift_curve(content["drift"], names) if content["drift"] else None,
        radii_curve=radii_curve(content["radii"], content["threat"]["norm"]) if content["radii"] else None,
        response_curves=[
            response_curve(curve, f"curve-{i}", names) for i, curve in enumerate(response.get("curves", []))
        ],
        maps=[
            {measure: heat_map(grid, measure, f"map-{i}-{measure}", names) for measure in ("success", "cosine")}
            for i, grid in enumerate(response.get("maps", []))
        ],
        deployed=deployment_tables(deployment, tuple(names)),
        largest=LARGEST,
        **vars(pictures),
    )


def sections(content: Mapping[str, Any], pictures: Images, has_trace: bool) -> list[PageSection]:
    """The sections of the page in order; those without content are left out."""
    arms = f"{COUNTS.get(len(content['arms']), len(content['arms']))} arms"
    views = f"{arms}, the same {content['bank']['views']} held-out views"
    patch = bool(content["threat"]["patch"])
    noun = "patch" if patch else "perturbation"
    present = {key: bool(value) for key, value in content.items()} | {
        "views": pictures.sheet is not None,
        "attack": has_trace,
        "perturbation": patch or bool(pictures.perturbation),
    }
    table = [
        ("arms", "Results", views),
        ("comparisons", "Comparisons", "Are the differences real?"),
        ("views", "Pictures", "What the camera sees"),
        ("attack", "The attack", "How the attack went"),
        ("radii", "Smallest radii", "How small a change is enough"),
        ("response", "Response", "Which views it survives"),
        ("failure", "Rare failures", "How often a view fails, over all views"),
        ("left_out", "Stages left out", "Which transform the attack must see"),
        ("deployment", "Deployment", "What codecs and resizers leave of it"),
        ("detection", "Detection", "Does the encoder see what people see?"),
        ("explanations", "Explanations", "What the encoder looks at"),
        ("perturbation", f"The {noun}" if patch else "Perturbation", f"The {noun} itself"),
        ("drift", "Layers", "Where in the network"),
        ("sanity", "Sanity checks", "Can this attack be believed?"),
        ("cost", "Cost", "What it cost"),
        ("subject", "Encoder", "What was tested"),
        ("protocol", "Protocol", "Protocol, and how to repeat it"),
    ]
    return [PageSection(*row) for row in table if present.get(row[0], True)]
