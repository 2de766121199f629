"""The kinds of parts, a page of cards each."""

from dataclasses import dataclass

#: The source of what has no other.
OWN_SOURCE = "this project's own"


@dataclass(frozen=True)
class PartKind:
    """What the parts of a page have in common: its title, how a command names one, and what a card says of which the
    part has no line of its own."""

    title: str
    cost: str = ""
    oracle: str = ""
    source: str = ""
    command: str = "python -m attacks.run config=smoke {group}={name}"


#: Of the stages, by room of `transforms`.
ROOMS = {
    "geometry": PartKind("Views: geometry"),
    "wrappers": PartKind("Views: choices"),
    "colour": PartKind("Views: colour and light"),
    "camera": PartKind("Views: camera, file and size"),
}
#: Of everything else, by group.
GROUPS = {
    "transforms": PartKind("Presets of views", oracle="its views and their gradient, tests/schema/test_configs.py"),
    "attack": PartKind("Attacks", oracle="a run, tests/run/test_attacks.py", source=OWN_SOURCE),
    "optimiser": PartKind("Optimisers"),
    "perturbation": PartKind("Perturbation sets"),
    "objective": PartKind("Objectives", "no pass of the encoder besides that of the view"),
    "risk": PartKind("Risks", "no pass of the encoder besides those of the views"),
    "draws": PartKind("Draws", "a point for each view"),
    "penalty": PartKind("Penalties", "linear in the pixels, once a step", source=OWN_SOURCE),
    "encoder": PartKind("Encoders", "of a view one pass of the network, in an attack forward and back"),
    "defence": PartKind(
        "Defences",
        "its stages in each view, forward and back",
        "a gradient through it, tests/encoders/test_defended.py",
        OWN_SOURCE,
    ),
    "printer": PartKind(
        "Printers",
        "its stages on the sheet in each view, forward and back",
        "any texture with a gradient, tests/perturbations/patch/test_printer.py",
        command="python -m attacks.run config=patch {group}={name}",
    ),
    "data": PartKind("Pictures", "each picture is read and embedded once", source=OWN_SOURCE),
    "sanity": PartKind("Sanity checks", source=OWN_SOURCE),
    "engine": PartKind("Engines", source=OWN_SOURCE),
    "tracker": PartKind("Trackers", "a record for each step", "tests/runtime/tracking/test_adapters.py", OWN_SOURCE),
    "config": PartKind(
        "Presets of a run",
        oracle="it validates and builds, tests/schema/test_configs.py",
        source=OWN_SOURCE,
        command="python -m attacks.run config={name}",
    ),
    "policies": PartKind(
        "Policies",
        "nothing besides the run whose numbers it reads",
        "tests/gate/test_policy.py",
        OWN_SOURCE,
        "python -m attacks.run config=evaluate require={name}",
    ),
    "launcher": PartKind(
        "Launchers",
        "a process for each job",
        "tests/schema/test_launchers.py",
        "Hydra's plugin of its library",
        "python -m attacks.run -m config=smoke seed=0,1 hydra/launcher={name}",
    ),
}
#: Where the files of a group are, unless in the folder of its name.
FOLDERS = {"launcher": "hydra/launcher"}
