"""Run the tests with the oldest supported versions of all dependencies, or with the newest.

    python scripts/check_versions.py lowest                    # every dependency as old as pyproject.toml allows
    python scripts/check_versions.py newest                    # as new as it allows
    python scripts/check_versions.py candidate                 # and the release candidate of hydra-core
    python scripts/check_versions.py lowest -n 2 tests/run/test_run.py # what follows is pytest's

Each creates a temporary environment (about 6 GB), runs the tests in it, and removes it. Needs uv: pip cannot resolve
to the lowest versions.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
#: The options of uv. Only what pyproject.toml names itself is taken at its lowest: of other packages' packages the
#: lowest are often broken.
KINDS = {"lowest": ["--resolution", "lowest-direct"], "newest": [], "candidate": []}
#: Further requirements of a kind; a pre-release that is named here is allowed for this package alone.
CANDIDATES = {"candidate": "hydra-core>=1.4.0rc1,<1.5"}
#: Warnings of what hydra 1.5 will do otherwise: the tests speak to 1.3 and 1.4 alike, and must not end at them.
WARNINGS = {"candidate": ("The version_base parameter is deprecated", "ConfigStore config ")}
#: The packages whose versions are printed before the tests.
PACKAGES = ("torch", "torchvision", "hydra-core", "omegaconf", "kornia", "numpy", "pillow", "safetensors", "pytest")


def uv() -> list[str]:
    """The command that is uv. Raises SystemExit where there is none."""
    if path := shutil.which("uv"):
        return [path]
    module = [sys.executable, "-m", "uv"]
    if subprocess.run([*module, "--version"], capture_output=True, check=False).returncode:
        raise SystemExit("uv is needed: python -m pip install uv")
    return module


def compile_command(kind: str, folder: Path, python: Path) -> list[str]:
    """The command that writes the versions of this kind to `folder`."""
    sources = [str(PROJECT)]
    if kind in CANDIDATES:
        (folder / "also.txt").write_text(CANDIDATES[kind] + "\n")
        sources.append(str(folder / "also.txt"))
    options = ["--quiet", "--no-annotate", "--no-header", "--extra", "test", *KINDS[kind]]
    target = ["--python", str(python), "--output-file", str(folder / "versions.txt")]
    return [*uv(), "pip", "compile", *options, *target, *sources]


def main_pins(text: str) -> str:
    """The most important versions of a list, on one line."""
    pins = [line.split(" ")[0] for line in text.splitlines()]
    return " ".join(pin for pin in pins if pin.split("==")[0] in PACKAGES)


def check_pins(kind: str, arguments: list[str]) -> int:
    """Make the environment, run the tests in it; the exit code of pytest."""
    with tempfile.TemporaryDirectory(prefix="versions-") as temporary:
        folder = Path(temporary)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        binaries = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = binaries / "python"
        subprocess.run(compile_command(kind, folder, python), check=True)
        print(
            f"{kind}: Python {sys.version.split()[0]} {main_pins((folder / 'versions.txt').read_text())}",
            flush=True,
        )
        install = [*uv(), "pip", "install", "--quiet", "--python", str(python)]
        subprocess.run([*install, "--requirement", folder / "versions.txt"], check=True)
        subprocess.run([*install, "--no-deps", "--editable", ROOT], check=True)
        environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)  # else another environment's packages could come first
        extra_arguments = [word for text in WARNINGS.get(kind, ()) for word in ("-W", f"ignore:{text}")]
        tests = [str(python), "-m", "pytest", *extra_arguments, *arguments]
        return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of pytest")
    options = parser.parse_args()
    sys.exit(check_pins(options.kind, options.arguments))


if __name__ == "__main__":
    main()
