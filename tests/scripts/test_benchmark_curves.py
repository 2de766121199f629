"""The curves of a patch: the drawn pairs, and the averages."""

import pytest
import torch

from attacks import rate
from attacks.data.gallery import HELD_OUT
from scripts.benchmarks import patch_curves
from scripts.benchmarks.case import known, photo
from scripts.benchmarks.patch_curves import AREAS, ARMS, KNOWN, PIPELINE, SCALES, WHOLE, Job, at, centred, pairs
from transforms import Affine

NAMES = [f"{photo}-{i}-{j}" for photo in (*HELD_OUT, "brick", "grass") for i in range(2) for j in range(3)]


def test_pairs_use_every_held_out_photograph_and_targets_of_other_ones():
    drawn = pairs(NAMES, len(HELD_OUT), 5)
    assert len(set(drawn)) == 5 * len(HELD_OUT) and drawn == pairs(NAMES, len(HELD_OUT), 5)
    assert all(photo(NAMES[picture]) != photo(NAMES[target]) for picture, target in drawn)
    assert {photo(NAMES[picture]) for picture, _ in drawn} == set(HELD_OUT)
    assert pairs(NAMES, 6, 1)[0] == pairs(NAMES, 2, 1)[0]  # more pictures do not change the first
    with pytest.raises(ValueError, match="--targets"):
        pairs(NAMES, 1, len(NAMES))
    with pytest.raises(ValueError, match="--pictures"):
        pairs(NAMES, 99, 1)


def test_square_has_the_given_area():
    for area in AREAS:
        (left, top), (right, _), (_, low), _ = centred(area)
        assert (right - left) * (low - top) == pytest.approx(area) and left + right == pytest.approx(1)


def test_fixed_magnification_leaves_all_other_ranges_unchanged():
    u = torch.rand(5, PIPELINE.dims)
    fixed, free, names = at(0.3).values(u), PIPELINE.values(u), list(PIPELINE.names)
    where = next(i for i, name in enumerate(names) if "scale" in name)
    assert torch.allclose(fixed[:, where], torch.tensor(0.3)) and (free[:, where] > 0.7).all()
    others = [i for i in range(len(names)) if i != where]
    assert torch.equal(fixed[:, others], free[:, others])
    assert sum(isinstance(stage, Affine) for stage in PIPELINE.stages) == 1


@pytest.mark.slow
def test_a_figure_is_the_mean_over_pairs(monkeypatch):
    """Synthetic hits: those of each job depend on its area and target."""

    def work(job: Job):
        near = {arm: [torch.full((4,), job.area * (job.target % 3))] for arm in ARMS}
        far = {arm: [torch.full((4,), s) for s in SCALES] for arm in (*ARMS, KNOWN)}
        return near, far if job.area == WHOLE else {}

    monkeypatch.setattr(patch_curves, "work", work)
    by_area, by_distance = patch_curves.run(2, 3, 8, 4)
    drawn = pairs(known(patch_curves.SIZE)[1].names, 2, 3)
    for i, area in enumerate(AREAS):
        hits = torch.stack([torch.full((4,), area * (target % 3)) for _, target in drawn])
        mean, low, high, _ = rate(hits)
        for name, value in (("", mean), (", low", low), (", high", high)):
            assert by_area.rows[f"with EOT{name}"][i] == pytest.approx(value)
    assert by_distance.rows[KNOWN] == pytest.approx(SCALES)


@pytest.mark.slow
def test_all_arms_are_scored_and_hits_are_0_or_1():
    near, far = patch_curves.work(Job(0, 200, WHOLE, 8, 2))
    assert set(near) == set(ARMS) and set(far) == {*ARMS, KNOWN}
    assert all(len(far[arm]) == len(SCALES) for arm in far)
    assert all(set(hits.tolist()) <= {0, 1} for arm in far for hits in far[arm])
