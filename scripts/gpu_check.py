"""What a GPU must show, in about nine minutes on one: `python scripts/gpu_check.py`; without a GPU, a rehearsal in
small: `python scripts/gpu_check.py --device cpu`.

Each step is a process of its own with a time limit; its output goes to OUT/STEP.log. The summary is printed, and
written to OUT/summary.md, for the section on GPUs of docs/benchmarks.md. The exit status is 1 if a step failed.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = """
import platform, torch, torchvision
name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
print(f"Python {platform.python_version()}, torch {torch.__version__}, torchvision {torchvision.__version__}, {name}")
"""
#: pytest-benchmark warns of several processes, and warnings are errors.
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:benchmark")


@dataclass(frozen=True)
class GpuStep:
    """A command with its seconds at most, and how many of its last lines the summary has."""

    name: str
    seconds: int
    command: tuple[str, ...]
    lines: int = 12


def gpu_steps(device: str, out: Path) -> list[GpuStep]:
    """The steps on a GPU, or small ones that rehearse them on a CPU."""
    tests = [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text()]
    first = [
        GpuStep("versions", 60, ("-c", VERSIONS), 1),
        GpuStep("tests", 120, ("-m", "pytest", "-q", "-m", "gpu", "-n", "4", *PLUGINS, *tests), 2),
    ]

    def benchmark(name: str, seconds: int, lines: int, options: str) -> GpuStep:
        options = f"scripts/benchmark.py {name} {options} --device {device}"
        return GpuStep(name, seconds, tuple(options.split()), lines)

    def attack(name: str, seconds: int, overrides: str) -> GpuStep:
        words = f"-m attacks.run {overrides} engine.device={device}".split()
        return GpuStep(name, seconds, (*words, f"hydra.run.dir={out / name}"))

    if device == "cpu":
        small = benchmark("engine", 120, 12, "--arch pocket --views 2 --rounds 1")
        return [*first, small, attack("run", 300, "config=smoke sanity=none")]
    encoder = "encoder=torchvision encoder.model=vit_b_16 encoder.weights=random"
    large = "data.size=96 data.count=200 evaluate.batch=100 sanity=none evaluate.maps=[]"
    return [
        *first,
        benchmark("engine", 300, 40, "--arch resnet50 --views 128 --rounds 5"),
        benchmark("memory", 90, 30, "--arch resnet18 --rounds 2 --views 8 64 512"),
        attack("run", 90, "config=quickstart"),
        attack("evaluate", 180, f"config=evaluate {encoder} {large}"),
    ]


def ran(step: GpuStep, out: Path) -> tuple[bool, str]:
    """Run a step; whether it succeeded, and its part of the summary."""
    log, began = out / f"{step.name}.log", time.monotonic()
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                [sys.executable, *step.command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=step.seconds
            ).returncode
            end = "done" if code == 0 else f"failed with status {code}"
        except subprocess.TimeoutExpired:
            code, end = 1, f"stopped after {step.seconds} s"
    tail = "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-step.lines :])
    return code == 0, f"{step.name}: {end}, {time.monotonic() - began:.0f} s\n\n```text\n{tail}\n```\n"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu_check"), help="folder of logs; it must be new")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        parser.error(f"--out: {out} exists: name a new folder")
    finished_steps, parts = True, list[str]()
    for step in gpu_steps(options.device, out):
        good, part = ran(step, out)
        finished_steps, parts = finished_steps and good, [*parts, part]
        print(part, flush=True)
    (out / "summary.md").write_text("\n".join(parts))
    return 0 if finished_steps else 1


if __name__ == "__main__":
    sys.exit(main())
