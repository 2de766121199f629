"""A new stage, objective, optimiser and section: each is one file and its line in a registry (CONTRIBUTING.md)."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields

import pytest

from attacks.runtime.tables import read_rows
from attacks.schema.options import declared_fields
from attacks.schema.run import SECTIONS, EvaluateConfig
from tests.helpers.liars import cell, file_bytes
from tests.test_rooms import ROOT

STAGE = '''"""A haze over the picture."""

from dataclasses import dataclass

from torch import Tensor

from transforms.compose import Stage


@dataclass(frozen=True)
class Haze(Stage):
    """Mix a picture with white."""

    most: float = 0.0
    names = ("haze (share)",)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return images + self.most * u[:, :1, None, None] * (1 - images)
'''
OBJECTIVE = '''"""The squared cosine to the anchor."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cosine_similarity

from attacks.eot.protocols import Objective
from attacks.schema.options import option


@dataclass(frozen=True)
class Square(Objective):
    """The square of the cosine to the own picture should fall."""

    power: float = option(2.0, "of the cosine", range="above 0")

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        return cosine_similarity(features, anchor).abs() ** self.power
'''
OPTIMISER = '''"""Steps of one length along the sign of the gradient."""

from dataclasses import dataclass

from attacks.eot.protocols import Optimiser
from attacks.schema.options import option


@dataclass(frozen=True)
class Sign(Optimiser):
    """Steps of one length along the steepest direction."""

    share: float = option(0.25, "length of a step as a share of eps", range="above 0")

    def init(self, delta, *, reach, steps):
        return self.share * reach

    def step(self, delta, estimate, state, constraint, done):
        return constraint.step(delta, estimate.grad, delta.new_full((len(delta),), state)), state
'''
SECTION = '''"""How much pictures differ from one pixel to the next."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attacks.data.images import save_image
from attacks.experiment.sections.section import Section, SectionResult, pictures_of
from attacks.schema.options import option


@dataclass(frozen=True)
class Roughness(Section):
    """The mean difference of neighbours, times `gain`, in every arm."""

    roughness: int = option(0, "pictures whose neighbouring pixels are compared", low=0)
    gain: float = option(1.0, "factor of each difference", range="above 0")

    key: ClassVar[str] = "roughness"
    figure: ClassVar[str | None] = "roughness.png"
    measures: ClassVar[tuple[str, ...]] = ("mean",)

    def rows(self, bench, sample, meter):
        rows, pictures = [], pictures_of(bench, sample)
        for arm, images in pictures.items():
            means = self.gain * images.diff(dim=3).abs().mean((1, 2, 3))
            for name, cluster, mean in zip(sample.names, sample.clusters, means.tolist(), strict=True):
                rows.append({"picture": name, "cluster": cluster, "arm": arm, "mean": mean})
        return SectionResult(rows, {}, pictures["eot"][0].cpu())

    def summary(self, rows):
        return {"largest": max(float(row["mean"]) for row in rows), "gain": self.gain}

    def draw(self, path, drawing):
        save_image(path, drawing)
'''
GROUPS = "attacks/schema/groups.py"


def line(part):
    return f'        "{part.split(".")[1]}": "attacks.{part}",\n'


#: File of the newcomer -> its text; the registry, the text before which a line is inserted, and the line.
PARTS = {
    "transforms/colour/haze.py": (
        STAGE,
        "transforms/colour/__init__.pyi",
        "from .",
        "from .haze import Haze as Haze\n",
    ),
    "attacks/objectives/squared.py": (OBJECTIVE, GROUPS, '        "bits": ', line("objectives.squared.Square")),
    "attacks/optimisers/sign.py": (OPTIMISER, GROUPS, '        "wiener": ', line("optimisers.sign.Sign")),
    "attacks/experiment/sections/roughness.py": (
        SECTION,
        "attacks/schema/run.py",
        '    "failure": ',
        '    "roughness": "attacks.experiment.sections.roughness.Roughness",\n',
    ),
}


def test_sections_declare_no_key_of_evaluate_and_none_twice():
    (base,) = EvaluateConfig.__bases__
    declared = [name for place in SECTIONS.values() for name, *_ in declared_fields(place)]
    names = [field.name for field in fields(base)] + declared
    assert len(set(names)) == len(names) == len(fields(EvaluateConfig))


@pytest.mark.slow
def test_a_part_is_one_file_and_one_line(tmp_path):
    for package in ("attacks", "transforms", "configs"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (text, registry, before, entry) in PARTS.items():
        (tmp_path / name).write_text(text)
        content = (tmp_path / registry).read_text()
        assert before in content
        (tmp_path / registry).write_text(content.replace(before, entry + before, 1))
    words = "config=smoke data.count=2 sanity=none +transforms.stages.haze.most=0.3 objective=squared optimiser=sign"
    words += " objective.power=3 optimiser.share=0.5 evaluate.roughness=2 evaluate.gain=4 hydra.run.dir=run"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    verify = [
        "-c",
        "import sys, attacks.commands; sys.exit(attacks.commands.main())",
        "verify",
        "run",
        "--sample",
        "1",
    ]

    def python(*command):
        line = [sys.executable, *command]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    for command in (["-m", "attacks.run", *words.split()], verify):
        result = python(*command)
        assert result.returncode == 0, result.stderr
    content = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert any("haze" in name for name in content["bank"]["coordinates"])
    rows = read_rows(tmp_path / "run" / "roughness.csv")
    assert len(rows) == 2 * len(content["arms"]) and content["roughness"]["gain"] == 4
    assert content["roughness"]["largest"] == max(float(row["mean"]) for row in rows) > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert '<a href="#roughness">Roughness</a>' in page and "The drawing of roughness" in page
    assert content["arms"]["eot"]["cosine"]["mean"] < content["arms"]["noise"]["cosine"]["mean"]
    cell("roughness", "mean")(tmp_path / "run")
    file_bytes(tmp_path / "run")  # new digests: only the pictures say that the row is wrong
    result = python(*verify)
    assert result.returncode == 1 and "clean, mean: recorded" in result.stdout, result
