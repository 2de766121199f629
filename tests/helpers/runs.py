"""A small evaluation in batches, for tests of its results and of resuming it."""

import pytest

from tests.run.test_run import call

TINY = ["config=evaluate", "data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none"]
TINY += ["evaluate.batch=2", "evaluate.views=4", "evaluate.refine=1"]
#: Without the slowest parts of a small run.
LEAN = ["evaluate.maps=[]", "evaluate.curves=[]", "evaluate.left_out=0", "evaluate.deploy=0", "evaluate.explain=0"]
FIRST = "000000-000002.safetensors"


def whole_run(tmp_path_factory):
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, *TINY, *LEAN, f"hydra.run.dir={folder}") == 0
    return folder


def quiet(cosine=0.2, used=1.0, **changes):
    """The part of metrics.json that warnings read, without cause for one: an attack with mean `cosine`, and arms that
    use this share of the budget."""
    arm = {key: {"mean": 0.9, "low": 0.9, "high": 0.9} for key in ("cosine", "success", "recall_at_1")}
    arm |= {"budget_used": used}
    arms = dict.fromkeys(("clean", "noise", "no_eot"), arm) | {"eot": arm | {"cosine": {"mean": cosine}}}
    threat = {"objective": "away", "targeted": False, "patch": None}
    content = {"sanity": None, "queries": list("abcdefghij"), "clusters": list("abcdefghij"), "arms": arms}
    content |= {"threat": threat, "comparisons": [], "primary": {"measure": "success"}}
    return content | {"encoder": {"weights": None}, "bank": {"coordinates": ["angle (deg)"]}} | changes
