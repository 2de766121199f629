"""The comparison of patches: both have the same task, positions and evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attacks.data.gallery import photograph
from attacks.objectives import InfoNCE
from scripts.benchmarks import patch
from scripts.benchmarks.case import gallery_case
from scripts.benchmarks.contest import OURS, Contestant, Setting
from scripts.benchmarks.patch import CONTESTANTS, PatchCell, PatchJob, ToGallery, moving_patch, patch_outcome
from scripts.benchmarks.patch_case import GROUPS, SCENES, SIZE, Anywhere, Askew, PatchRanges, patch_task
from scripts.benchmarks.peers import LogProbabilities
from transforms.sampling.homography import invert, transform

SQUARE = torch.tensor([[[-1.0, -1], [1, -1], [1, 1], [-1, 1]]], dtype=torch.float64)
CELL = PatchCell(True, PatchRanges((0.5, 0.8)))


@pytest.fixture(scope="module")
def task():
    return patch_task(1, True, PatchRanges((0.5, 0.8), distortion=0.2), 2)


def test_patch_is_placed_as_documented_by_art():
    # Scale s about the middle, turned by the angle, then moved by up to the free space of the unturned square.
    place, u = Anywhere(scale=(0.3, 0.6), degrees=22.5), torch.rand(16, 4, dtype=torch.float64)
    size, angle, right, down = place.values(u).unbind(-1)
    c, s = torch.deg2rad(angle).cos()[:, None], torch.deg2rad(angle).sin()[:, None]
    x, y = size[:, None] * SQUARE.unbind(-1)[0], size[:, None] * SQUARE.unbind(-1)[1]
    move = torch.stack([2 * right - 1, 2 * down - 1], -1) * (1 - size)[:, None]
    expected = torch.stack([c * x - s * y, s * x + c * y], -1) + move[:, None]
    corners, _ = transform(invert(place.pull_of(u)), SQUARE.expand(16, -1, -1))
    torch.testing.assert_close(corners, expected)


def test_a_distorted_patch_has_its_corners_moved_inward():
    u = torch.rand(8, 8, dtype=torch.float64)
    corners, _ = transform(invert(Askew(0.2).matrix(u)), SQUARE.expand(8, -1, -1))
    torch.testing.assert_close((SQUARE - corners) * SQUARE.sign(), 0.2 * u.unflatten(-1, (4, 2)))
    assert (corners.abs() <= 1).all()


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")  # raised by the libraries
def test_both_renderers_show_a_patch_in_the_same_place(task, monkeypatch):
    pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    task = replace(task, ranges=PatchRanges((0.5, 0.8)))
    attack_of_art, _, _ = moving_patch(task, Setting(1.0, 1), "Adam")
    u = torch.rand(SCENES, 4)
    texture = F.interpolate(torch.rand(1, 3, 6, 6), (48, 48), mode="bilinear")
    uniform_values = iter([u[i, k].item() for i in range(SCENES) for k in (0, 2, 3, 1)])  # scale, right, down, angle
    monkeypatch.setattr(np.random, "uniform", lambda low, high: low + (high - low) * next(uniform_values))
    theirs = attack_of_art._random_overlay(task.image, texture[0])
    mine = task.ranges.pipeline(task.ranges.patch(96, 48).scene(task.image, texture), u)
    # ART samples the nearest pixel: off by up to half a pixel, which shows at the edges of the texture.
    off = (theirs - mine).abs().amax(1)
    assert off.median() < 0.02 and (off > 0.1).float().mean() < 0.1
    other_views = task.ranges.pipeline(task.ranges.patch(96, 48).scene(task.image, texture), 1 - u)
    assert (theirs - mine).abs().mean() < 0.2 * (theirs - other_views).abs().mean()


@pytest.mark.slow
def test_groups_share_neither_scenes_nor_targets():
    names, tasks = gallery_case(SIZE)[1].names, [patch_task(group, True, PatchRanges(), 1) for group in range(GROUPS)]
    rows, targets = (
        torch.cat([task_of_group.rows for task_of_group in tasks]),
        [task_of_group.target for task_of_group in tasks],
    )
    assert len(rows.unique()) == GROUPS * SCENES and len(set(targets)) == GROUPS
    assert {photograph(names[row]) for row in rows}.isdisjoint(photograph(names[target]) for target in targets)


@pytest.mark.slow
def test_a_view_succeeds_if_the_target_is_nearest(task):
    target = gallery_case(SIZE)[1].images[task.target].expand(SCENES, -1, -1, -1)
    cosine, success = task.judgement(target)
    torch.testing.assert_close(cosine, torch.ones(SCENES, 1))
    assert success.all() and not task.judgement(task.image)[1].any()
    direction = patch_task(1, False, PatchRanges(), 1)
    assert direction.judgement(target)[1].all() and not direction.judgement(direction.image)[1].any()


def test_fresh_placements_differ_and_leave_the_rest_of_the_scene(task):
    views = task.ours(torch.zeros(1, 3, 48, 48), 4).unflatten(0, (SCENES, 4))
    patch_pixels = views.amax(2) == 0
    assert (patch_pixels[:, 0] != patch_pixels[:, 1]).any(1).any(1).all() and 0.1 < patch_pixels.float().mean() < 0.7
    scene_pixels = (views - task.image[:, None]).abs().amax(2) < 1e-5
    assert (patch_pixels | scene_pixels).float().mean() > 0.9


def test_art_loss_equals_our_loss(task):
    with torch.no_grad():
        embedding = task.counter.encoder(task.image)
        to_anchor, to_gallery = LogProbabilities(task.counter, task.anchor)(task.image), ToGallery(task)(task.image)
    zero = torch.zeros(SCENES, dtype=torch.long)
    entropy = F.cross_entropy(to_anchor, zero, reduction="none")
    torch.testing.assert_close(entropy, 2 - F.cosine_similarity(embedding, task.anchor))
    entropy = F.cross_entropy(to_gallery, task.goal, reduction="none")
    torch.testing.assert_close(entropy, InfoNCE(task.gallery, targeted=True)(embedding, task.goal))


def test_too_many_groups_are_refused():
    with pytest.raises(ValueError, match="`--groups` must be at most"):
        patch.run(1, GROUPS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("targeted", [True, False])
def test_our_attack_spends_its_budget(monkeypatch, targeted):
    monkeypatch.setattr(patch, "CONTESTANTS", {OURS: CONTESTANTS[OURS]})  # one renderer is enough
    outcome = patch_outcome(PatchJob(CELL._replace(targeted=targeted), 1, OURS, CONTESTANTS[OURS].default, 4, 2))
    assert outcome.gradients == 4
    assert outcome.success.shape == outcome.cosine.shape == (1, SCENES, 2)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ART, Adam", "ART, pgd"])
@pytest.mark.parametrize("loss", ["cosine", "gallery"])
def test_art_spends_the_same_budget_and_moves_in_the_right_direction(name, loss):
    pytest.importorskip("art.estimators.classification", exc_type=ImportError)
    for targeted in (True, False):
        cell = CELL._replace(targeted=targeted)
        strong, weak = (
            patch_outcome(PatchJob(cell, 1, name, Setting(step, 4, loss=loss), 16, 8)) for step in (0.1, 1e-6)
        )
        assert strong.gradients == 16
        better = (strong.cosine - weak.cosine).mean()
        assert better > 0.02 if targeted else better < -0.02


def grey(task, setting):
    """A texture that is grey, as light as the step of the setting."""
    return lambda: torch.full((1, 3, 48, 48), setting.step)


@pytest.mark.slow
def test_the_table_compares_with_ours_and_tunes_on_the_first_group(monkeypatch):
    grid = tuple(Setting(step, 1) for step in (0.0, 0.5, 1.0))
    fake = {
        OURS: Contestant("attacks", grey, (), Setting(0.5, 1)),
        "other": Contestant("attacks", grey, grid, Setting(0.0, 1)),
        "absent": Contestant("no_such_module", grey, grid, Setting(0.0, 1)),
    }
    monkeypatch.setattr(patch, "CONTESTANTS", fake)
    monkeypatch.setattr(patch, "TUNING_VIEWS", 2)
    groups, cell = [], PatchCell(False, PatchRanges((0.2, 0.4)))
    monkeypatch.setattr(patch, "patch_task", lambda group, *rest: groups.append(group) or patch_task(group, *rest))
    success, cosine = patch.compare_patches(cell, 1, 2, 2)
    assert groups == [0, 0, 0] + 3 * [1, 2]
    for table in (success, cosine):
        assert list(table.rows) == [OURS, "other", "other, tuned", "absent"] and table.rows["absent"] in str(table)
        mine, other = table.rows[OURS], table.rows["other"]
        assert mine[1] is None and mine[2:] == (0, 0, 0)
        assert other[2] == pytest.approx(other[0] - mine[0], abs=1e-6) and other[3] <= other[2] <= other[4]
    first = [patch_outcome(PatchJob(cell, 0, "other", setting, 1, patch.TUNING_VIEWS)) for setting in grid]
    best = max(range(3), key=lambda i: (float(first[i].success.mean()), -float(first[i].cosine.mean())))
    assert any(note.startswith(f"other, tuned: {grid[best]}") for note in success.notes)
