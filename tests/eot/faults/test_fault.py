"""Non-finite values are reported with stage, step, view and values, and can be reproduced from a file."""

import pytest
import torch

from attacks import EOT, Away, Ensemble, Linf, Universal
from attacks.eot.bank import bank, judged
from attacks.eot.faults import NotFinite, fault
from attacks.eot.faults.locate import Query, not_finite
from attacks.eot.problem import Problem
from attacks.eot.protocols import Objective
from attacks.evaluation.scores import Right, evaluate
from attacks.objectives import Members, Paired
from attacks.objectives.penalties import TotalVariation
from tests.helpers.faulty import LIMIT, Head, Turn, attack_steps, net, pictures, run_attack
from transforms import Affine, Brightness, Compose
from transforms.draws import stream


def failing(**setup):
    with pytest.raises(NotFinite) as failure:
        run_attack(**setup)
    return failure.value


@pytest.mark.parametrize("perturbation", [Linf(0.1), Universal(Linf(0.1))], ids=["own", "shared"])
@pytest.mark.parametrize(("slope", "place"), [(False, "stage `turn`"), (True, "the gradient of stage `turn`")])
def test_the_error_names_stage_step_view_and_values(slope, place, perturbation):
    stages, count = [Affine(degrees=20), Turn(slope), Brightness(0.1)], 0
    running = attack_steps(stages=stages, perturbation=perturbation, n=2)
    with pytest.raises(NotFinite) as failure:
        for count, _ in enumerate(running, 1):  # noqa: B007
            pass
    result = failure.value.fault
    assert result.where == place
    assert result.step == count
    assert result.values["turn angle (deg)"] > LIMIT
    pipeline = Compose(stages)
    assert result.values == pipeline.describe(result.u)[0]
    for text in (f"step {count}: ", f"{place}, in view {result.view} of image {result.picture}", "turn angle (deg)"):
        assert text in str(failure.value)


def test_the_reported_view_is_the_one_drawn_by_the_attack():
    result = failing(stages=[Turn()], n=4).fault
    eot = EOT(Compose([Turn()]), views=4)
    points = eot.points(stream(3, "attack"), result.step, pictures())
    assert torch.equal(points[result.view], result.u[0])
    assert result.shown.shape == (1, *pictures().shape[1:]) and result.shown.isnan().all()
    picture, stage, *_ = result.lines
    assert (picture.name, stage.name) == ("picture", "turn") and not picture.bad and stage.bad == 3 * 10 * 12
    image = pictures()[result.picture]
    assert abs(picture.least - float(image.min())) <= 0.1 and abs(picture.greatest - float(image.max())) <= 0.1


class Infinite(Objective):
    """An infinite loss, or one of infinite slope."""

    def __init__(self, slope):
        self.slope = slope

    def __call__(self, features, anchor):
        return (features - features).abs().sqrt().sum(1) + features.sum(1) if self.slope else features.sum(1) / 0


MEMBERS = {"encoder": Ensemble([net(), net(1)]), "objective": Members(Away(), "gradients")}


def steep(features, images):
    return features + (images - images).abs().sqrt().mean()


SECOND = MEMBERS | {"encoder": Ensemble([net(), Head(steep)])}


@pytest.mark.parametrize(
    ("place", "parts"),
    [
        ("the encoder", {"encoder": Head(lambda features, _: features / 0)}),
        ("the gradient of the encoder", {"encoder": Head(steep)}),
        ("the objective", {"objective": Infinite(False)}),
        ("the gradient of the objective", {"objective": Infinite(True)}),
        ("stage `turn`", {"objective": Paired(Away()), "stages": [Turn()]}),
        ("stage `turn`", MEMBERS | {"stages": [Turn()]}),
        ("stage `turn`", {"stages": [Turn()], "penalty": TotalVariation(1.0)}),
        ("the gradient of the encoder", SECOND | {"perturbation": Universal(Linf(0.1))}),
    ],
    ids=[
        *("encoder", "gradient of encoder", "objective", "gradient of objective", "paired", "members", "penalised"),
        "second member, shared perturbation",
    ],
)
def test_the_failing_part_is_named(place, parts):
    assert failing(**{"stages": [Affine(degrees=20)]} | parts).fault.where == place


def test_a_fault_that_no_single_view_reproduces_is_reported():
    images, u = pictures(), torch.rand(2, 1) / 2
    problem = Problem(images, net()(images), net(), Away(), Linf(0.1))
    query = Query(problem, Compose([Turn()]), torch.zeros_like(images), u, torch.arange(3))
    error = not_finite(query, torch.ones(3, dtype=torch.bool))
    assert "though each of 6 views is when it is seen alone" in str(error)
    assert error.fault is None
    assert fault.write(None, error) is None


def test_a_saved_fault_is_reproduced_and_the_error_has_the_command(tmp_path):
    error = failing(stages=[Affine(degrees=20), Turn()])
    path = fault.write(tmp_path, error)
    assert str(error).endswith(f"viewproof replay {tmp_path}")
    copy = fault.read_fault(path)
    for name, value in error.fault._asdict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(copy, name).nan_to_num(7), value.nan_to_num(7)), name
    assert (copy.sentence(), copy.values) == (error.fault.sentence(), error.fault.values)
    assert str(copy.lines) == str(error.fault.lines)  # as text, because NaN is not equal to itself
    fault.write(tmp_path, error, "fault.00003.safetensors")
    assert str(error).endswith("fault.00003.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95 not a tensor", b"\x02" + bytes(7) + b"{}"])
def test_a_file_without_a_view_gives_a_one_line_error(tmp_path, content):
    (tmp_path / fault.NAME).write_bytes(content)
    with pytest.raises(ValueError, match="does not hold a view"):
        fault.read_fault(tmp_path / fault.NAME)
    with pytest.raises(FileNotFoundError, match="met no view"):
        fault.read_fault(tmp_path / "none")


def test_fields_of_another_kind_are_refused(tmp_path):
    result = failing(stages=[Turn()]).fault
    changes = ({"where": "\x1b[2J"}, {"u": 1.0}, {"values": {"angle": "high"}}, {"lines": (1,)}, {"step": "0"})
    for change in (*changes, {"shown": torch.zeros(2)}):
        fault.write(tmp_path, NotFinite("", result._replace(**change)))
        with pytest.raises(ValueError, match="does not hold a view"):
            fault.read_fault(tmp_path / fault.NAME)


def test_evaluation_stops_at_a_view_that_is_not_finite():
    images, views = pictures(), bank(Compose([Affine(degrees=20), Turn()]), 16, seed=0, purpose="evaluate")
    with pytest.raises(NotFinite, match="stage `turn`") as score_error:
        evaluate(images, net()(images), net()(images), encoder=net(), bank=views)
    with pytest.raises(NotFinite, match="step 4: ") as other:
        views.losses_of(judged(images, net()(images), net(), Away()), 5, step=4)
    assert score_error.value.fault.view == other.value.fault.view
    right = Right(torch.arange(3), torch.arange(3), torch.arange(3))
    for signature in (None, torch.sign):  # the sign of NaN is a number
        with pytest.raises(NotFinite, match="stage `turn`") as rank_error:
            evaluate(
                *(images, net()(images), net()(images)), encoder=net(), bank=views, right=right, signature=signature
            )
        assert rank_error.value.fault.view == score_error.value.fault.view
    assert score_error.value.fault.doing == "evaluate"
    assert float(Turn().values(views.u[score_error.value.fault.view, -1])) > LIMIT
