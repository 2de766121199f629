"""The report: one page, nothing fetched, nothing run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attacks.data.images import file_names
from attacks.encoders.description import described
from attacks.report.curves import drift_curve, loss_curve, response_curve, spectrum_curve
from attacks.report.environment import environment
from attacks.report.facts import command, compared, deployed, of_module, protocol, rows, tiles, verdict
from attacks.report.maps import heat_map
from attacks.report.sheets import LARGEST, Picture, from_file, perturbation
from attacks.report.words import arm_names, measured
from attacks.runtime.files import write_text
from attacks.solvers.trace import Trace

COUNTS = {3: "Three", 4: "Four", 5: "Five"}


@dataclass(frozen=True)
class Images:
    """The pictures of a page; what is None or empty is left out. `shown` names the picture of `sheet` and of
    `perturbation`."""

    shown: str = ""
    sheet: Picture | None = None
    texture: Picture | None = None
    perturbation: Sequence[Picture] = ()
    explanations: Picture | None = None


class PageSection(NamedTuple):
    """A part of the page, `templates/sections/ID.html`: its heading, and its name in the contents."""

    id: str
    short: str
    title: str


def write_report(
    out: Path,
    content: Mapping[str, Any],
    manifest: Mapping[str, Any],
    warnings: Sequence[str],
    trace: Sequence[Trace],
    shown: int | None = None,
) -> None:
    """Write `report.html` into a run directory, with the pictures that lie there already: `views.png`, `patch.png`,
    `explanations.png`, and of `pictures/` number `shown`, the one of `views.png`."""
    write_text(out / "report.html", render(content, manifest, warnings, trace, images(out, content, shown)))


def images(out: Path, content: Mapping[str, Any], shown: int | None) -> Images:
    """The pictures of a run directory."""
    names, looked = tuple(content["queries"]), (content.get("explanations") or {}).get("pictures", [])
    name = "" if shown is None else names[shown]
    arms = f"{name} in {len(content['arms'])} arms, each as a file and from held-out views, with the cosine to its"
    patch = content["threat"].get("patch")
    changed: list[Picture] = []
    if shown is not None and not patch:
        file = file_names(names)[shown]
        changed = perturbation(*(out / "pictures" / arm / file for arm in ("clean", "eot")))
    return Images(
        name,
        from_file(out / "views.png", f"{arms} clean embedding"),
        from_file(out / "patch.png", "The texture of the patch") if patch else None,
        changed,
        from_file(
            out / "explanations.png",
            f"Maps of what the encoder looks at in {looked[0] if looked else 'a picture'}, before and after",
        ),
    )


def render(
    content: Mapping[str, Any],
    manifest: Mapping[str, Any],
    warnings: Sequence[str] = (),
    trace: Sequence[Trace] = (),
    pictures: Images | None = None,
) -> str:
    """The page of a run, from what metrics.json and manifest.json hold. A section of which neither they nor the
    pictures know anything is left out, so a run of an older version has its page, too."""
    pictures, names = pictures or Images(), arm_names(content)
    parts = {key: content.get(key) or {} for key in ("wide", "response", "deployment", "explanations")}
    wide, response, spectrum = parts["wide"], parts["response"], parts["explanations"].get("spectrum")
    patch = content["threat"].get("patch")
    return (
        environment()
        .get_template("report.html")
        .render(
            metrics=content,
            names=names,
            warnings=warnings,
            verdict=verdict(content),
            tiles=tiles(content),
            sections=sections(content, pictures, bool(trace)),
            groups=measured(content["arms"]),
            compared=compared(content),
            wide_groups=measured(wide.get("arms", {})),
            encoder=described(content["encoder"]) if content.get("encoder") else [],
            patch_facts=rows(patch) if patch else [],
            command=command(manifest),
            of_module=of_module(manifest),
            settings=" ".join((manifest.get("engine") or {}).get("settings", [])),
            protocol=protocol(content, manifest),
            curve=loss_curve(trace, content["threat"]["objective"]) if trace else None,
            drift_curve=drift_curve(content["drift"], names) if content.get("drift") else None,
            response_curves=[
                response_curve(curve, f"curve-{i}", names) for i, curve in enumerate(response.get("curves", []))
            ],
            maps=[
                {measure: heat_map(each, measure, f"map-{i}-{measure}", names) for measure in ("success", "cosine")}
                for i, each in enumerate(response.get("maps", []))
            ],
            deployed=deployed(parts["deployment"], tuple(names)),
            spectrum=spectrum_curve(spectrum, names) if spectrum and any(spectrum["arms"].values()) else None,
            largest=LARGEST,
            **vars(pictures),
        )
    )


def sections(content: Mapping[str, Any], pictures: Images, traced: bool) -> list[PageSection]:
    """What the page has, top down."""
    arms = content["arms"]
    views = f"{COUNTS.get(len(arms), len(arms))} arms, the same {content['bank']['views']} held-out views"
    patch = bool(content["threat"].get("patch"))
    perturbed = ("The patch", "The patch itself") if patch else ("Perturbation", "The perturbation itself")
    all_of_them: list[tuple[bool, PageSection]] = [
        (True, PageSection("arms", "Results", views)),
        (bool(content.get("comparisons")), PageSection("comparisons", "Comparisons", "Are the differences real?")),
        (pictures.sheet is not None, PageSection("views", "Pictures", "What the camera sees")),
        (traced, PageSection("attack", "The attack", "How the attack went")),
        (bool(content.get("response")), PageSection("response", "Response", "Which views it survives")),
        (
            bool(content.get("left_out")),
            PageSection("left_out", "Stages left out", "Which transform the attack must see"),
        ),
        (
            bool(content.get("deployment")),
            PageSection("deployment", "Deployment", "What codecs and resizers leave of it"),
        ),
        (bool(content.get("explanations")), PageSection("explanations", "Explanations", "What the encoder looks at")),
        (patch or bool(pictures.perturbation), PageSection("perturbation", *perturbed)),
        (bool(content.get("drift")), PageSection("drift", "Layers", "Where in the network")),
        (bool(content.get("sanity")), PageSection("sanity", "Sanity checks", "Can this attack be believed?")),
        (True, PageSection("cost", "Cost", "What it cost")),
        (bool(content.get("encoder")), PageSection("subject", "Encoder", "What was tested")),
        (True, PageSection("protocol", "Protocol", "Protocol, and how to repeat it")),
    ]
    return [section for there, section in all_of_them if there]
