"""The bundled encoder meets the claims of its page on photographs outside its training set."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from attacks import EOT, PGD, Away, Linf, bank, evaluate, interval, load_encoder, solve
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.experiment.build.pipeline import pipeline
from attacks.run import CONFIGS, register
from attacks.schema.validate import validate


@pytest.fixture(scope="module")
def setting():
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        camera = pipeline(validate(compose("run", overrides=["config=quickstart"])).transforms)
    encoder, everything = load_encoder("pocket"), tiles(128)
    rows = [i for i, name in enumerate(everything.names) if name.split("-")[0] in HELD_OUT]
    gallery = encoder(everything.images)
    return camera, encoder, everything.images[rows], torch.tensor(rows), gallery


def recall(scores, rows):
    return float((scores.nearest == rows[:, None]).double().mean())


def test_weights_are_small_and_the_gallery_is_large(setting):
    *_, rows, gallery = setting
    assert POCKET_WEIGHTS.stat().st_size <= 1_500_000
    assert len(gallery) >= 200 and len(rows) >= 30


@pytest.mark.slow
def test_clean_and_noisy_views_are_recognised(setting):
    camera, encoder, images, rows, gallery = setting
    unseen = bank(camera, 128, seed=3, purpose="test")
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(0))
    clean = evaluate(images, gallery[rows], gallery, encoder=encoder, bank=unseen)
    assert recall(clean, rows) >= 0.95
    assert recall(evaluate(noisy, gallery[rows], gallery, encoder=encoder, bank=unseen), rows) >= 0.93


@pytest.mark.nightly
@pytest.mark.parametrize("eps", [16, 8])
def test_eot_survives_the_camera_and_the_plain_attack_does_not(setting, eps):
    camera, encoder, images, rows, gallery = setting
    if eps == 16:  # the effect is large: a third of the pictures is enough
        images, rows = images[::3], rows[::3]
    own, budget = gallery[rows], Linf(eps / 255)
    unseen = bank(camera, 128, seed=3, purpose="test")
    scores = {}
    for arm, eot, steps in (("no_eot", EOT(views=1), 800), ("eot", EOT(camera), 100)):
        best = solve(
            images, own, encoder=encoder, objective=Away(), perturbation=budget, optimiser=PGD(), eot=eot, steps=steps
        )
        saved = images + budget.quantise(best.delta, images)
        scores[arm] = evaluate(saved, own, gallery, encoder=encoder, bank=unseen)
    plain, robust = (interval(scores[arm].cosine) for arm in ("no_eot", "eot"))
    if eps == 8:
        assert robust.mean <= plain.mean - 0.15 and robust.high < plain.low
    else:
        assert recall(scores["eot"], rows) <= 0.15
        assert recall(scores["no_eot"], rows) >= 2 * recall(scores["eot"], rows)
