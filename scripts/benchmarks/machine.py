"""Describes the machine that ran a benchmark."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import torch

PACKAGES = (
    *("torch", "torchvision", "kornia", "numpy"),
    *("adversarial-robustness-toolbox", "torchattacks", "foolbox"),
)


def describe(device: str) -> dict[str, object]:
    """CPU and accelerator, cores, threads, load, versions (None: not installed), git revision and date (UTC)."""
    gpu = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "device": gpu or "cpu",
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git": _revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
