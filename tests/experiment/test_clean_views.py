"""The clean views of the first pictures: what is counted, when a run is refused, and what it leaves."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from attacks.data.gallery import Pictures
from attacks.eot.bank import bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.judge import Judge
from attacks.experiment.bench import MAIN
from attacks.experiment.clean_views import LIMIT, PICTURES, VIEWS, CleanViews, LostViews, clean_views, refuse_loss
from attacks.schema.presets import is_choice
from tests.helpers.runs import call
from transforms import Brightness, Compose


@pytest.mark.parametrize(
    ("errors", "count", "goal"), [(0, 3, None), (2, 5, None), (3, 3, None), (4, 12, None), (2, 5, 0)]
)
def test_what_is_right_and_lost_is_counted_by_hand(errors, count, goal):
    """Pictures of one bright pixel each, the first few with the label of the next: nearest is the pixel's class."""
    encoder, size = nn.Flatten().eval(), 12
    images = torch.eye(size)[:count, None].reshape(count, 1, 3, 4).expand(-1, 3, -1, -1) * 0.5
    rows = encoder(torch.eye(size).reshape(size, 1, 3, 4).expand(-1, 3, -1, -1))
    truth = torch.arange(count) + (torch.arange(count) < errors)
    goals = None if goal is None else torch.full((count,), goal)
    classes = Classes(tuple(map(str, range(size))), rows, right=0.25)
    judge = Judge(encoder, encoder(images), rows, classes, truth, goals)
    queries = Pictures(tuple(map(str, range(count))), images)
    study = SimpleNamespace(queries=queries, gallery=classes, device=torch.device("cpu"))
    views = bank(Compose([Brightness(0.0)]), 2 * VIEWS, seed=0, purpose="evaluate")
    result = clean_views(SimpleNamespace(study=study, judge=judge, banks={MAIN: views}))
    number = min(count, PICTURES)
    assert (result.views, result.right) == (number * VIEWS, (number - errors) * VIEWS)
    assert result.loss == (errors / number if goal is None else 1 / number)
    assert result.cosine == pytest.approx(1) and result.files == 0.25
    assert f"({result.right} of {result.views})" in str(result) and "clean files: 25 % right" in str(result)


def test_a_choice_is_a_word_or_a_preset_of_the_user():
    for word in (
        "transforms=camera",
        "transforms.stages.jpeg.quality=[50,60]",
        "+transforms.x=1",
        "~transforms.stages",
    ):
        assert is_choice("transforms", "quickstart", ["seed=1", word]), word
    assert is_choice("transforms", "mine", []) and not is_choice(
        "transforms", "smoke", ["transformsx=1", "a=transforms"]
    )


@pytest.mark.parametrize(
    ("share", "weights", "preset"), [*product((0.0, LIMIT, 0.51, 1.0), (None, "random"), ("smoke", "mine"))]
)
def test_only_lost_views_that_nobody_chose_are_refused(share, weights, preset):
    for overrides in ([], ["transforms=camera"]):
        manifest = {"preset": preset, "overrides": overrides, "encoder": {"weights": weights}}
        manifest |= {"config": {"transforms": {"name": "camera"}}}
        try:
            refuse_loss(CleanViews(share, 100, round(100 * (1 - share)), 0.5, None), manifest)
            is_refused = False
        except LostViews as error:
            is_refused, text = True, str(error)
            assert text.startswith("`transforms`") and f"{100 * share:.0f} %" in text and "\n" not in text
            assert "transforms=web" in text and "say transforms=camera" in text
        assert is_refused == (share > 0.5 and weights is None and preset == "smoke" and not overrides)


@pytest.mark.slow
def test_a_refused_run_leaves_its_directory_to_the_next(tmp_path, monkeypatch, capsys):
    """The hash loses camera views. The line stands before the first step, once."""
    out = tmp_path / "run"
    words = ("config=smoke", "encoder=phash", "data.size=64", "attack.steps=1", f"hydra.run.dir={out}")
    assert call(monkeypatch, *words) == 1
    assert "are lost before any attack" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [".lock"]
    assert call(monkeypatch, *words, "transforms=camera") == 0
    error = capsys.readouterr().err
    assert error.count("clean views: ") == 1 and error.index("clean views: ") < error.index("eot: ")
