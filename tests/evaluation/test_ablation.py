"""The ablation of stages: its attacks, its tests, and their scores."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from attacks import bank
from attacks.encoders.randomness import EncoderDraws, encoder_draws
from attacks.evaluation.ablation import left_out, summary
from attacks.evaluation.clusters import Sample
from attacks.evaluation.judge import CellScores
from attacks.evaluation.scores import Scores
from attacks.inference import sign_flips
from transforms import Affine, Brightness, Compose
from transforms.camera import Quantise
from transforms.geometry import Placement
from transforms.scene import Layer, Scene
from transforms.wrappers import OnLayers, Sometimes

VIEWS = Compose([Affine(20), Quantise(), Brightness(0.2), Sometimes(Affine(scale=(0.5, 1)), 0.7), Brightness(0.1)])
LABELS = ["affine", "brightness1", "sometimes", "brightness2"]
SAMPLE = Sample(torch.tensor([1, 0]), ("a", "b"), ("one", "two"))


def kinds(pipeline):
    return [repr(stage) for stage in pipeline.stages]


@dataclass
class Recorder:
    """An attack and a judge that record their calls; the score encodes the attack and the test."""

    images: torch.Tensor

    def __post_init__(self):
        self.pipelines, self.banks = [], []

    def attack(self, pipeline):
        self.pipelines.append(pipeline)
        return self.images * 0 + len(self.pipelines)

    def __call__(self, scenes, rows, bank):
        self.banks.append(bank)
        bank.transforms(scenes.clamp(0, 1), bank.u[: len(scenes)])  # raises if a view cannot be made
        score = 0.1 * scenes.mean((1, 2, 3)) + 0.01 * len(bank.transforms.stages)
        return Scores(score[:, None].expand(-1, len(bank.u)), torch.zeros(len(scenes), len(bank.u)).long())

    def success(self, scores, rows):
        return scores.nearest != rows[:, None]


@pytest.fixture
def images():
    return torch.rand(2, 3, 12, 14)


def run(judge, pipeline=VIEWS):
    return left_out(judge.attack, pipeline, SAMPLE, judge, views=4, seed=0)


def test_each_stage_is_left_out_once_and_tested_alone(images):
    judge = Recorder(images)
    result = summary(run(judge))
    assert result["stages"] == LABELS and result["tests"] == ["all", *LABELS]
    assert (result["pictures"], result["clusters"]) == (2, 2)
    stages = kinds(VIEWS)
    expected = [[stage for j, stage in enumerate(stages) if j != i] for i in (None, 0, 2, 3, 4)]
    assert [kinds(pipeline) for pipeline in judge.pipelines] == expected
    tests = [stages, *([stages[i] for i in sorted((i, 1))] for i in (0, 2, 3, 4))]  # Quantise has no coordinates
    assert [kinds(test_bank.transforms) for test_bank in judge.banks] == tests * 5
    for i, row in enumerate(result["rows"]):
        assert row["without"] == ["nothing", *LABELS][i]
        for cell, test in zip(row["cells"], tests, strict=True):
            assert cell["cosine"]["mean"] == pytest.approx(0.1 * (i + 1) + 0.01 * len(test))
    assert [cell["test"] for cell in result["rows"][0]["cells"]] == result["tests"]


@pytest.mark.parametrize("count", [5, 7, 9])
def test_differences_hold_for_all_cells_at_once_and_of_fit_pictures_are_ranges(count):
    random = torch.Generator().manual_seed(count)
    cells = {
        (label, test): CellScores(torch.zeros(count, 8), torch.rand(count, 8, generator=random) < share)
        for label, share in (("nothing", 0.9), ("affine", 0.1), ("contrast", 0.8))
        for test in ("all", "affine", "contrast")
    }
    sample = Sample(torch.arange(count), (*map(str, range(count)),), (*map(str, range(count)),))
    rows = [row for (label, test), cell in cells.items() for row in cell.rows(sample, without=label, test=test)]
    for line in summary(rows)["rows"][1:]:
        for cell in line["cells"]:
            pair = [cells[label, cell["test"]].success.double().mean(1) for label in (line["without"], "nothing")]
            expected = sign_flips(*pair, tests=6)
            assert (cell["difference"], cell["p"]) == (expected.difference._asdict(), expected.p)
            assert cell["needed"] == expected.needed == (None if count > 7 else 8)
    for line in summary([row | {"split": "fit"} for row in rows])["rows"]:
        assert {cell[name]["kind"] for cell in line["cells"] for name in ("success", "cosine")} == {"range"}
        assert all(cell["p"] is None and cell["needed"] == 16 for cell in line["cells"] if cell["difference"])


def test_a_single_stage_keeps_its_values_of_the_whole_pipeline(images):
    judge = Recorder(images)
    run(judge)
    full_bank, *single = judge.banks[:5]
    assert torch.equal(full_bank.u, bank(VIEWS, 4, seed=0, purpose="left out").u)
    columns = [range(5), range(5, 6), range(6, 12), range(12, 13)]
    for test_bank, place in zip(single, columns, strict=True):
        assert torch.equal(test_bank.u, full_bank.u[:, list(place)])


def test_placement_is_never_left_out(images):
    sheet = Layer(torch.rand(1, 3, 4, 4), None, torch.eye(3)[None] * 3)
    scene = Scene((Layer(images, None, torch.eye(3)[None]), sheet), (12, 14))
    placement = OnLayers([Brightness(0.1)], Placement())

    class PatchJudge(Recorder):
        def attack(self, pipeline):
            self.pipelines.append(pipeline)
            return scene

        def __call__(self, scenes, rows, bank):
            self.banks.append(bank)
            views = bank.transforms(scenes, bank.u[:2])
            cosine = F.cosine_similarity(views.flatten(1), images.flatten(1))[:, None].expand(-1, len(bank.u))
            return Scores(cosine, torch.zeros_like(cosine).long())

    judge = PatchJudge(images)
    result = run(judge, Compose([placement, Affine(20), Brightness(0.1)]))
    assert summary(result)["stages"] == ["affine", "brightness"]
    assert all(pipeline.stages[0] == placement for pipeline in judge.pipelines)
    full_bank, affine_bank, lit = judge.banks[:3]
    assert (full_bank.u[:, :5] != 0.5).any()
    for test_bank, columns in ((affine_bank, slice(5, 10)), (lit, slice(10, 11))):
        assert test_bank.transforms.stages[0] == placement and (test_bank.u[:, :5] == 0.5).all()
        assert torch.equal(test_bank.u[:, 5:], full_bank.u[:, columns])
    with pytest.raises(ValueError, match=r"`evaluate.left_out` must be 0 where no stage of the views varies"):
        run(judge, Compose([placement, Quantise()]))


def test_an_encoders_own_randomness_is_a_stage_of_the_views(images):
    cell_scores = EncoderDraws(Compose([Brightness(0.1)]))
    judge = Recorder(images)
    result = run(judge, Compose([Affine(20), cell_scores]))
    assert summary(result)["stages"] == ["affine", "encoder"]
    assert [kinds(pipeline) for pipeline in judge.pipelines[1:]] == [[repr(cell_scores)], [repr(Affine(20))]]
    full_bank, affine_bank, random = judge.banks[:3]
    assert encoder_draws(affine_bank.transforms, affine_bank.u) == {}  # without draws the encoder is deterministic
    assert torch.equal(
        encoder_draws(random.transforms, random.u)["draws"], encoder_draws(full_bank.transforms, full_bank.u)["draws"]
    )
