"""Attack without a stage, test with it."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from attacks import bank, evaluate, interval
from attacks.encoders.randomness import EncoderDraws, drawn
from attacks.evaluation.ablation import left_out
from attacks.evaluation.intervals import rate
from attacks.evaluation.scores import Scores
from transforms import Affine, Brightness, Compose, Flip, Layer, OnLayers, Placement, Quantise, Scene, Sometimes

VIEWS = Compose([Affine(20), Quantise(), Brightness(0.2), Sometimes(Affine(scale=(0.5, 1)), 0.7), Brightness(0.1)])
LABELS = ["affine", "brightness1", "sometimes", "brightness2"]
NAMES = ["a", "b"]
ROWS = torch.tensor([1, 0])


def kinds(pipeline):
    return [repr(stage) for stage in pipeline.stages]


@dataclass
class Noted:
    """An attack and a judge that note what they are asked; the score tells which attack was judged on which test."""

    images: torch.Tensor

    def __post_init__(self):
        self.attacked, self.banks = [], []

    def attack(self, pipeline):
        self.attacked.append(pipeline)
        return self.images * 0 + len(self.attacked)

    def __call__(self, shown, rows, bank):
        self.banks.append(bank)
        bank.transforms(shown.clamp(0, 1), bank.u[: len(shown)])  # it can be seen
        score = 10 * shown.mean((1, 2, 3)) + len(bank.transforms.stages)
        return Scores(score[:, None].expand(-1, len(bank.u)), torch.zeros(len(shown), len(bank.u)).long())

    def success(self, scores, rows):
        return scores.nearest != rows[:, None]


@pytest.fixture
def images():
    return torch.rand(2, 3, 12, 14)


def run(judge, pipeline=VIEWS, **changed):
    attack = changed.pop("attack", None) or judge.attack
    return left_out(attack, pipeline, ROWS, judge, names=NAMES, views=4, steps=7, seed=0, **changed)


def test_each_stage_is_left_out_once_and_tested_alone(images):
    judge = Noted(images)
    result = run(judge).to_dict()
    assert result["stages"] == LABELS and result["tests"] == ["all", *LABELS]
    assert (result["pictures"], result["steps"]) == (2, 7)
    stages = kinds(VIEWS)
    expected = [[stage for j, stage in enumerate(stages) if j != i] for i in (None, 0, 2, 3, 4)]
    assert [kinds(pipeline) for pipeline in judge.attacked] == expected
    tests = [stages, *([stages[i] for i in sorted((i, 1))] for i in (0, 2, 3, 4))]  # quantising varies nothing
    assert [kinds(each.transforms) for each in judge.banks] == tests * 5
    for i, row in enumerate(result["rows"]):
        assert row["without"] == ["nothing", *LABELS][i]
        for cell, test in zip(row["cells"], tests, strict=True):
            assert cell["cosine"]["mean"] == pytest.approx(10 * (i + 1) + len(test))
    assert [cell["test"] for cell in result["rows"][0]["cells"]] == result["tests"]


def test_a_stage_alone_takes_the_values_that_it_has_among_all(images):
    judge = Noted(images)
    run(judge)
    whole, *alone = judge.banks[:5]
    assert torch.equal(whole.u, bank(VIEWS, 4, seed=0, purpose="left out").u)
    columns = [range(5), range(5, 6), range(6, 12), range(12, 13)]
    for each, where in zip(alone, columns, strict=True):
        assert torch.equal(each.u, whole.u[:, list(where)])


def test_what_an_encoder_cannot_see_may_be_left_out_of_the_attack(images):
    # The encoder takes the mean of each channel: turning by half a turn and mirroring are nothing to it, light is.
    class Means(Noted):
        def __call__(self, shown, rows, bank):
            return evaluate(
                shown, self.images.mean((2, 3)), torch.eye(3), encoder=lambda x: x.mean((2, 3)), bank=bank
            )

    class Fits(Means):
        """The attack that darkens as far as its views are brightened."""

        def attack(self, pipeline):
            light = sum(2 * abs(stage.amount) for stage in pipeline.stages if isinstance(stage, Brightness))
            return (self.images - light).clamp(0, 1)

    pipeline = Compose([Flip(0.5), Brightness(0.1)])
    result = {row["without"]: row["cells"] for row in run(Fits(images), pipeline).to_dict()["rows"]}
    assert result["flip"] == result["nothing"] != result["brightness"]
    alone = result["brightness"][1]
    assert alone["test"] == "flip" and alone["cosine"]["mean"] == pytest.approx(1, abs=1e-6)


def test_without_its_only_stage_the_picture_itself_is_attacked(images):
    judge = Noted(images)
    result = run(judge, Compose([Affine(20)], "bicubic", value=0.1)).to_dict()
    assert judge.attacked[1] == Compose([], "bicubic", value=0.1)
    assert result["tests"] == ["all", "affine"]
    whole, alone = result["rows"][1]["cells"]
    assert whole["cosine"] == alone["cosine"]


def test_a_patch_stays_where_it_is_laid(images):
    sheet = Layer(torch.rand(1, 3, 4, 4), None, torch.eye(3)[None] * 3)
    scene = Scene((Layer(images, None, torch.eye(3)[None]), sheet), (12, 14))
    laid = OnLayers([Brightness(0.1)], Placement())
    judge = Noted(images)
    seen = []

    def look(shown, rows, bank):
        seen.append(bank)
        views = bank.transforms(shown, bank.u[:2])
        cosine = F.cosine_similarity(views.flatten(1), images.flatten(1))[:, None].expand(-1, len(bank.u))
        return Scores(cosine, torch.zeros_like(cosine).long())

    look.success = judge.success
    attacked = []
    result = run(
        look, Compose([laid, Affine(20), Brightness(0.1)]), attack=lambda pipeline: attacked.append(pipeline) or scene
    )
    assert result.stages == ["affine", "brightness"]
    assert all(pipeline.stages[0] == laid for pipeline in attacked)
    whole, turned, lit = seen[:3]
    assert (whole.u[:, :5] != 0.5).any()
    for each, columns in ((turned, slice(5, 10)), (lit, slice(10, 11))):
        assert each.transforms.stages[0] == laid and (each.u[:, :5] == 0.5).all()
        assert torch.equal(each.u[:, 5:], whole.u[:, columns])
    with pytest.raises(ValueError, match=r"`evaluate.left_out` must be 0 where no stage of the views varies"):
        run(look, Compose([laid, Quantise()]), attack=lambda _: scene)


def test_an_encoders_own_randomness_is_a_stage_of_the_views(images):
    own = EncoderDraws(Compose([Brightness(0.1)]))
    judge = Noted(images)
    result = run(judge, Compose([Affine(20), own]))
    assert result.stages == ["affine", "encoder"]
    assert [kinds(pipeline) for pipeline in judge.attacked[1:]] == [[repr(own)], [repr(Affine(20))]]
    whole, turned, random = judge.banks[:3]
    assert drawn(turned.transforms, turned.u) == {}  # an encoder without draws is at rest
    assert torch.equal(drawn(random.transforms, random.u)["draws"], drawn(whole.transforms, whole.u)["draws"])


def test_every_number_can_be_had_from_the_rows(images):
    judge = Noted(images)
    result = run(judge)
    rows = result.rows()
    assert len(rows) == 5 * 5 * 2 * 4 and len({tuple(row) for row in rows}) == 1
    for row in result.to_dict()["rows"]:
        for cell in row["cells"]:
            some = [r for r in rows if (r["without"], r["test"]) == (row["without"], cell["test"])]
            cosine, hits = (
                torch.tensor([[r[key] for r in some if r["picture"] == name] for name in NAMES])
                for key in ("cosine", "success")
            )
            assert interval(cosine)._asdict() == cell["cosine"] and rate(hits)._asdict() == cell["success"]
