"""The bundled encoder meets the claims of its page on photographs; it was trained on none."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from attacks import EOT, PGD, Away, Linf, bank, evaluate, load_encoder, solve
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.evaluation.significance import sign_flip
from attacks.run import CONFIGS, register
from attacks.schema.validate import validate
from attacks.study.pipeline import pipeline


@pytest.fixture(scope="module")
def setting():
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS)):
        camera = pipeline(validate(compose("run", overrides=["config=quickstart"])).transforms)
    encoder, everything = load_encoder("pocket"), tiles(128)
    rows = [i for i, name in enumerate(everything.names) if name.split("-")[0] in HELD_OUT]
    gallery = encoder(everything.images)
    photos = [everything.names[row].split("-")[0] for row in rows]
    return camera, encoder, everything.images[rows], torch.tensor(rows), gallery, photos


def by_photo(values, photos):
    """The mean of each photograph's tiles, (HELD_OUT,)."""
    means = values.double().flatten(1).mean(dim=1)
    return torch.stack([means[[i for i, name in enumerate(photos) if name == photo]].mean() for photo in HELD_OUT])


def recall(scores, rows, photos):
    return float(by_photo(scores.nearest == rows[:, None], photos).mean())


def test_weights_are_small_and_the_gallery_is_large(setting):
    *_, rows, gallery, photos = setting
    assert POCKET_WEIGHTS.stat().st_size <= 1_500_000
    assert len(gallery) >= 200 and len(rows) >= 30
    assert set(photos) == set(HELD_OUT)


@pytest.mark.nightly
def test_clean_and_noisy_views_are_recognised(setting):
    camera, encoder, images, rows, gallery, photos = setting
    views = bank(camera, 128, seed=3, purpose="test")
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(0))
    clean = evaluate(images, gallery[rows], gallery, encoder=encoder, bank=views)
    assert recall(clean, rows, photos) >= 0.95
    assert recall(evaluate(noisy, gallery[rows], gallery, encoder=encoder, bank=views), rows, photos) >= 0.93


@pytest.mark.nightly
@pytest.mark.parametrize("eps", [16, 8])
def test_eot_survives_the_camera_better_than_the_plain_attack(setting, eps):
    camera, encoder, images, rows, gallery, photos = setting
    sample = [i for photo in HELD_OUT for i in [j for j, name in enumerate(photos) if name == photo][:2]]
    images, rows, photos = images[sample], rows[sample], [photos[i] for i in sample]
    anchors, budget = gallery[rows], Linf(eps / 255)
    views = bank(camera, 128, seed=3, purpose="test")
    scores = {}
    for arm, eot, steps in (("no_eot", EOT(views=1), 8), ("eot", EOT(camera), 100)):  # more steps make it weaker
        best = solve(
            images,
            anchors,
            encoder=encoder,
            objective=Away(),
            perturbation=budget,
            optimiser=PGD(),
            eot=eot,
            steps=steps,
        )
        attacked_images = images + budget.quantise(best.delta, images)
        scores[arm] = evaluate(attacked_images, anchors, gallery, encoder=encoder, bank=views)
    plain, robust = (recall(scores[arm], rows, photos) for arm in ("no_eot", "eot"))
    assert robust <= plain - 0.15
    cosines = [by_photo(scores[arm].cosine, photos) for arm in ("no_eot", "eot")]
    difference = cosines[1] - cosines[0]
    assert difference.mean() < 0 and sign_flip(difference) < 0.05
