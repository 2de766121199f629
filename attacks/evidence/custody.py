"""What the record of a run says of when, where, with what and against which bars it was made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attacks.report.facts import command_line


@dataclass(frozen=True)
class Custody:
    """Of a run: `rows` of a table, (name, text), and `problems`, sentences about what does not hold."""

    rows: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def custody_of(manifest: Mapping[str, Any], content: Mapping[str, Any]) -> Custody:
    """The custody of a run by its manifest.json and the `content` of its metrics.json."""
    machine = (manifest[key] for key in ("platform", "device"))
    versions = (f"{name} {manifest['versions'].get(name)}" for name in ("viewproof", "torch"))
    return Custody(
        (
            ("machine", ", ".join(map(str, machine))),
            ("command", command_line(manifest)),
            ("versions", ", ".join((*versions, f"Python {manifest['python']}", f"git {manifest['git']}"))),
            ("gallery", f"{content['gallery']} pictures: {content['gallery_audit']['source']}"),
            ("encoder", f"{content['encoder']['name']}, SHA-256 of the tensors {content['encoder']['fingerprint']}"),
        )
    )
