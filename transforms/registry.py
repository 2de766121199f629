"""Every stage by name: what a configuration may ask for, and what the laws of the tests run over."""

import importlib
import re

ROOMS = ("transforms.geometry", "transforms.wrappers", "transforms.colour", "transforms.camera")
#: Classes that a room exports, which no configuration names: code adds them.
ADDED_BY_CODE = ("Placement", "OnLayers")
#: The stages that the rooms export. In a configuration `ThinPlate` is `thin_plate`.
STAGES: dict[str, type] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): part
    for module in map(importlib.import_module, ROOMS)
    for name in module.__all__
    if isinstance(part := getattr(module, name), type) and name not in ADDED_BY_CODE
}
