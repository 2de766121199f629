"""The house stays as it was drawn: who may import whom, and how large a room may grow."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    p for folder in ("attacks", "transforms", "scripts", "configs") for p in (ROOT / folder).rglob("*.py")
)

#: Each floor may import those before it.
TRANSFORMS = (
    ("surrogate", "homography", "gather", "fusion", "outline", "resize_kernels", "ranges", "draws", "colour"),
    ("tone", "colour_map", "scene"),
    ("reading", "resize_8bit", "compat_arguments", "light"),
    ("pyramid", "blur", "sensor", "codec", "illumination", "occlusion"),
    ("sampling",),
    ("base", "resize", "straight"),
    ("compat_opencv", "compat_torchvision", "placement"),
    ("layered",),
    ("geometry", "viewpoint", "bend", "cylinder", "choice", "photometric", "downscale", "resize_pad", "compat"),
    ("registry", "widen"),
    ("auditing", "auditing.coverage", "auditing.minification", "auditing.stationary", "auditing.steps"),
    ("auditing.trick", "auditing.report"),
    ("auditing.probe",),
    ("auditing.summary",),
    ("audit",),
)
FAMILIES = (
    "diffusers_models",
    "onnx_models",
    "open_clip_models",
    "plugins",
    "timm_models",
    "torchscript_models",
    "torchvision_models",
    "transformers_models",
)
ATTACKS = (
    (
        "living",
        "launchers",
        "cautions",
        "masking",
        "signals",
        "ledger.file",
        "randomness",
        "inks",
        "physical",
        "physical.extra",
        "physical.layout",
        "report.words",
        "report.colours",
    ),
    ("files", "messages", "ledger.workers", "physical.simulation.shots", "report.svg"),
    ("checkpoint.kept", "ledger.claims", "physical.fiducials", "physical.paper"),
    ("ledger", "physical.drawing"),
    ("physical.furniture", "physical.raster"),
    (
        "choices_encoder",
        "choices_physical",
        "choices_tracking",
        "links",
        "tracking.protocol",
        "alpha",
        "places",
        "surround",
        "metrics",
        "ranking",
        "verification",
        "codecs",
        "resamplers",
        "slices",
        "balls",
        "projections",
        "risk",
        "square",
        "layers",
        "norms",
    ),
    (
        "choices",
        "comparisons",
        "tables",
        "report.reading",
        *(f"tracking.{name}" for name in ("jsonl", "mlflow", "record", "tensorboard", "wandb")),
        "patch",
        "colour_files",
        "distributed",
        "passes",
        "trees",
        "ground",
        "classification",
        "encoders.phash",
    ),
    ("checkpoint.tasks", "features", "gamut", "inspection", "across", "tracking.choose"),
    ("checkpoint", "sparse", "tracking"),
    ("regions",),
    ("perturbations", "spectral"),
    ("schema", "engine.allocator", "engine.decision", "engine.memory", "engine.fold"),
    ("earlier",),
    ("physical.placed",),
    ("engine.mixed", "engine.precision"),
    ("engine.prepare", "engine.records"),
    ("engine.rounding", "engine.bench"),
    ("engine.search", "engine.fallback"),
    ("engine.measure",),
    ("engine",),
    ("estimate", "progress"),
    ("adaptive", "eot", "optimisers", "penalties"),
    ("apgd", "printability", "wiener"),
    ("parts", "faults.fault"),
    ("faults", "faults.traced", "checks", "meter"),
    ("faults.certain",),
    ("faults.silence",),
    ("images", "loop", "presets", "objectives"),
    ("listing", "pipelines"),
    ("shelf", "printers", "scene_table"),
    ("laying",),
    ("patches",),
    ("ensemble", "combined", "retrieval", "kinds", "spots"),
    ("gallery", "exhibits", "evaluation", "scenes", "encoders.preprocess", "encoders.weights"),
    ("search", "anchors", "worst", "drift", "zero_shot", "scoring", "per_image"),
    ("deployment", "explain.saliency", "explain.spectrum"),
    ("explain.deletion", "explain.gradcam", "explain.gradients"),
    ("explain.maps",),
    ("explain.figure",),
    ("explain.explanation",),
    ("explain",),
    ("solver", "encoders.pocket", "encoders.image_encoder", "response", "left_out"),
    ("encoders.request", "encoders.processor", "encoders.seeded", "encoders.defended"),
    ("encoders.hub",),
    ("encoders.stochastic",),
    ("encoders.module",),
    ("encoders.families", "encoders.families.onnx_opset"),
    ("encoders.families.onnx_graph",),
    tuple(f"encoders.families.{name}" for name in FAMILIES),
    ("encoders", "aims", "transfer"),
    ("subject", "sets", "judge"),
    ("embeddings",),
    ("sanity.check", "sanity.gap", "sanity.radius", "sanity.surrogate", "sanity.trial"),
    ("sanity.differences", "sanity.planted", "sanity.signal", "sanity.strength"),
    ("sanity.questions",),
    ("sanity.battery",),
    ("sanity",),
    ("suite", "build", "patch_facts"),
    ("arms", "tuning", "replay", "identity"),
    ("batch",),
    ("units",),
    ("experiment",),
    ("sections", "report.contact", "replay_run"),
    ("results",),
    ("report.environment", "report.sheets"),
    ("report.curves", "report.facts", "report.index", "report.maps"),
    ("report.page",),
    ("job",),
    ("run",),
    ("notebook",),
    ("physical.pdf", "physical.detect", "physical.rectify"),
    ("physical.sheet", "physical.simulation.camera"),
    ("physical.align", "physical.colour_fit", "physical.photos", "physical.views", "physical.rerun"),
    ("physical.looks", "physical.simulation.photographs"),
    ("physical.score", "physical.next_preset", "physical.simulation"),
    ("physical.photo_report",),
    ("physical.scoring",),
)


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> set[str]:
    """Every module named by an import statement, at any depth of the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(("package", "floors"), [("transforms", TRANSFORMS), ("attacks", ATTACKS)])
def test_imports_run_downwards(package, floors):
    level = {f"{package}.{name}": i for i, floor in enumerate(floors) for name in floor}
    known = {module(p) for p in SOURCES if module(p).startswith(f"{package}.")}
    assert known - set(level) <= {"attacks.report"}, "a new module needs its place on a floor"
    for path in SOURCES:
        here = module(path)
        for name in imports(path) & set(level):
            if here in level and here != name:
                assert level[name] < level[here], f"{here} imports {name}"


def test_transforms_never_import_attacks():
    for path in (ROOT / "transforms").rglob("*.py"):
        assert not any(name.split(".")[0] in ("attacks", "configs", "scripts") for name in imports(path)), path


def test_the_loop_receives_its_parts_and_imports_none():
    parts = {"perturbations", "optimisers", "objectives", "encoders", "build", "experiment"}
    assert not {name.removeprefix("attacks.") for name in imports(ROOT / "attacks/solvers/loop.py")} & parts


def test_only_run_knows_hydra():
    users = [module(path) for path in SOURCES if any(name.split(".")[0] == "hydra" for name in imports(path))]
    assert users == ["attacks.schema.launchers", "attacks.schema.messages", "attacks.run"]


def test_nobody_imports_scripts_or_tests():
    for path in SOURCES:
        assert not any(name.split(".")[0] in ("scripts", "tests") for name in imports(path)), path


@pytest.mark.parametrize("path", SOURCES + sorted((ROOT / "tests").glob("*.py")), ids=str)
def test_no_file_over_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_no_module_hides_a_public_name():
    import attacks

    modules = {path.stem for path in (ROOT / "attacks").glob("*.py")}
    assert not modules & set(attacks.__all__)
    for name in attacks.__all__:
        assert callable(getattr(attacks, name))
