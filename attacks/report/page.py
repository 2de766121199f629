"""The report of a run: one HTML page that fetches nothing and runs no scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from attacks.report import figures
from attacks.report.environment import environment
from attacks.report.sheets import LARGEST, Picture, from_file, perturbation, picture_file
from attacks.report.words import fate
from attacks.solvers.loop import Trace

COUNTS = {3: "Three", 4: "Four", 5: "Five", 6: "Six"}


@dataclass(frozen=True)
class Images:
    """The pictures of a page; those that are None or empty are left out. `picture_name` names the picture in `sheet`;
    the one in `perturbation` has the most success."""

    picture_name: str = ""
    sheet: Picture | None = None
    texture: Picture | None = None
    perturbation: Sequence[Picture] = ()
    explanations: Picture | None = None
    failures: Picture | None = None
    resized: Picture | None = None
    by_section: Mapping[str, Picture | None] = field(default_factory=dict)


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
    choice: tuple[int, int, float],
) -> str:
    """`report.html` of a run directory. `choice`: the pictures of metrics.json in `views.png` and at the top, and the
    success of the latter."""
    patch, (name, worst) = content["threat"]["patch"], (content["queries"][number] for number in choice[:2])
    arms = f"{name} in {len(content['arms'])} arms, each as a file and from held-out views, with the cosine to its"
    example = content["explanations"]["pictures"][0] if content["explanations"] else "a picture"
    file, success = picture_file(content, manifest, choice[1]), f"{100 * choice[2]:.0f} % of its views"
    captions = (f"Untouched: {worst}", f"Attacked, the worst: {success} are {fate(content)}")
    tables = (Path(table) for table in manifest.get("artefacts", {}).get("files", ()) if table.endswith(".csv"))
    templates = environment().list_templates()  # tables of figures show a section without one of its own
    keys = [table.stem for table in tables if isinstance(content.get(table.stem), dict)]
    keys = [key for key in keys if f"sections/{key}.html" not in templates]
    pictures = Images(
        name,
        from_file(out / "views.png", f"{arms} clean embedding"),
        from_file(out / "patch.png", "The texture of the patch") if patch else None,
        perturbation(out / "pictures" / "clean" / file, out / "pictures" / "eot" / file, captions),
        from_file(out / "explanations.png", f"Explanations of {example} before and after the attack"),
        from_file(out / "failure.png", "The views that fail most, with the values of their coordinates"),
        from_file(out / "deployment.png", "An attacked picture, and what each resizer makes of it"),
        {key: from_file(out / f"{key}.png", f"The drawing of {key}") for key in keys},
    )
    return render_page(content, manifest, warnings, trace, pictures)


def render_page(
    content: Mapping[str, Any],
    manifest: Mapping[str, Any],
    warnings: Sequence[str] = (),
    trace: Sequence[Trace] = (),
    pictures: Images | None = None,
) -> str:
    """The page of a run, from the content of metrics.json and manifest.json, without its empty sections."""
    pictures = pictures or Images()
    values = {"metrics": content, "manifest": manifest, "warnings": warnings, "trace": trace, "figures": figures}
    values |= {"sections": sections(content, pictures, bool(trace)), "largest": LARGEST}
    return environment().get_template("report.html").render(values, **vars(pictures))


def sections(content: Mapping[str, Any], pictures: Images, has_trace: bool) -> list[PageSection]:
    """The sections of the page in order; those without content are left out."""
    count = len(content["arms"])
    views = f"{COUNTS.get(count, count)} arms, the same {content['bank']['views']} held-out views"
    patch = bool(content["threat"]["patch"])
    noun = "patch" if patch else "perturbation"
    present = {key: bool(value) for key, value in content.items()} | {
        "views": pictures.sheet is not None,
        "clips": "clips" in content,
        "attack": has_trace,
        "perturbation": patch or bool(pictures.perturbation),
    }
    table = [
        ("arms", "Results", views),
        ("comparisons", "Comparisons", "Are the differences real?"),
        ("views", "Pictures", "What the camera sees"),
        ("attack", "The attack", "How the attack went"),
        ("radii", "Smallest radii", "How small a change is enough"),
        ("clips", "Clips", "Does it hold over the frames?"),
        ("response", "Response", "Which views it survives"),
        ("failure", "Rare failures", "How often a view fails, over all views"),
        ("left_out", "Stages left out", "Which transform the attack must see"),
        ("deployment", "Deployment", "What codecs and resizers leave of it"),
        ("detection", "Detection", "Does the encoder see what people see?"),
        ("explanations", "Explanations", "What the encoder looks at"),
        ("perturbation", f"The {noun}" if patch else "Perturbation", f"The {noun} itself"),
        ("drift", "Layers", "Where in the network"),
        *((key, title := key.replace("_", " ").capitalize(), title) for key in pictures.by_section),
        ("sanity", "Sanity checks", "Can this attack be believed?"),
        ("cost", "Cost", "What it cost"),
        ("protocol", "Protocol", "What was tested, and how to repeat it"),
        ("glossary", "Words", "What the words mean"),
    ]
    return [PageSection(*row) for row in table if present.get(row[0], True)]
