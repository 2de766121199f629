"""Colours from photographs of the chart."""

import numpy as np
import pytest
import torch

from attacks.perturbations.patch.card import card
from attacks.physical import colour_fit
from attacks.physical.colour_fit import (
    Swatches,
    colour_difference,
    colour_terms,
    fit_colours,
    least_squares_map,
    measure_swatches,
    nominal,
    pool,
)
from tests.helpers.photographs import card_light, place_card, render_photo
from transforms.colour import lut as colour_map
from transforms.colour.spaces import to_linear

CARD = card(80, 80, words="card 7")
SOURCE = nominal(CARD)
ALL_VALID = np.ones((len(SOURCE), 3), bool)


def polynomial(degree, seed=0):
    rng = np.random.default_rng(seed)
    coefficients = rng.uniform(-0.04, 0.04, (3, {1: 4, 2: 10}[degree]))
    coefficients[[0, 1, 2], [1, 2, 3]] += 0.7
    coefficients[:, 0] += 0.05
    return coefficients


@pytest.mark.parametrize("degree", [1, 2])
def test_the_fit_recovers_a_polynomial(degree):
    true = polynomial(degree)
    light = colour_terms(SOURCE, degree) @ true.T
    result = fit_colours(SOURCE, Swatches(light, ALL_VALID))
    assert result.degree == degree and result.swatches == 32
    assert np.abs(result.coefficients - true).max() < 2e-3
    assert result.nominal_error > 3 and result.held_out_error < 0.05


def test_unchanged_colours_give_the_identity_map():
    result = fit_colours(SOURCE, Swatches(SOURCE, ALL_VALID))
    assert result.nominal_error == 0 and result.held_out_error < 1e-3
    assert np.allclose(result.coefficients[:, :4], [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], atol=1e-6)


def test_monomials_have_the_order_of_the_colour_map():
    light = np.random.default_rng(0).random((5, 3))
    for degree in (1, 2):
        assert np.allclose(colour_terms(light, degree), colour_map.terms(torch.tensor(light), degree).numpy())
    r, g, b = light.T
    assert np.allclose(colour_terms(light, 2).T, [np.ones(5), r, g, b, r * r, r * g, r * b, g * g, g * b, b * b])


def test_a_saturated_swatch_does_not_spoil_the_fit():
    """Twice the light: values are clipped at 1, and a fit that included them would be far too flat."""
    true = np.array([[0, 2.0, 0, 0], [0, 0, 2.0, 0], [0, 0, 0, 2.0]])
    light = np.clip(colour_terms(SOURCE, 1) @ true.T, 0, 1)
    result = least_squares_map(SOURCE, Swatches(light, light < 0.99), 1)
    assert np.abs(result - true).max() < 0.01
    assert np.abs(least_squares_map(SOURCE, Swatches(light, ALL_VALID), 1) - true).max() > 0.3


def test_few_swatches_are_fitted_with_degree_one_or_refused():
    light = colour_terms(SOURCE, 2) @ polynomial(2).T
    short, *suite = (Swatches(light, ALL_VALID & (np.arange(32) < count)[:, None]) for count in (7, 8, 15))
    with pytest.raises(ValueError, match=r"`swatches` must be at least 8 .* found 7"):
        fit_colours(SOURCE, short)
    assert [fit_colours(SOURCE, value).degree for value in suite] == [1, 1]


def test_held_out_swatches_are_not_fitted():
    """Noise alone: a fit of degree 2 is better on the fitted swatches, and worse on the held-out ones."""
    light = np.clip(SOURCE * 0.7 + 0.05 + 0.05 * np.random.default_rng(1).standard_normal(SOURCE.shape), 0, 1)
    value = Swatches(light, ALL_VALID)
    output = colour_difference(colour_terms(SOURCE, 2) @ least_squares_map(SOURCE, value, 2).T, light).mean()
    assert fit_colours(SOURCE, value).held_out_error > 1.1 * output


def test_the_middle_of_every_swatch_is_measured():
    pose = place_card(CARD, width=300, degrees=200, jitter=0.2, size=(560, 560))
    pixels = render_photo(card_light(CARD), pose, (560, 560), light_at=0.6, noise=0.01, points=2)
    result = measure_swatches(pixels, pose, CARD)
    assert result.valid.all()
    assert colour_difference(result.light, 0.6 * SOURCE).max() < 1.5
    bright = measure_swatches(render_photo(card_light(CARD), pose, (560, 560), light_at=1.7, points=2), pose, CARD)
    assert (bright.valid == (1.7 * SOURCE < 1)).all()


def test_a_swatch_beyond_the_edge_is_not_measured():
    pose = place_card(CARD, width=300, size=(420, 420), shift=(60, 0))
    result = measure_swatches(np.full((420, 420, 3), 99, np.uint8), pose, CARD)
    right = [swatch.box.x + swatch.box.width > 92 for swatch in CARD.chart]
    assert result.valid.any() and not result.valid[right].any()


def test_photographs_are_scaled_to_one_exposure():
    light = colour_terms(SOURCE, 2) @ polynomial(2).T
    stops = np.array([-1.0, 0.5, 0.0, 0.2, -0.3])
    shots = [Swatches(light * 2**stop, light * 2**stop < 1) for stop in stops]
    common, result = pool(shots, [None] * 5)
    assert np.allclose(np.log2(result), stops[:, None], atol=1e-6) and common.valid.all()
    assert np.allclose(common.light, light)
    assert (pool(shots[:1], [None])[1] == 1).all()


def test_the_exposure_measured_on_the_scene_is_removed_from_the_colours():
    """Gains, whether all photographs share them or not, are not part of the printer's map. A photograph without a
    measured gain is scaled to the others by its chart, each channel by itself."""
    light = 0.4 * colour_terms(SOURCE, 2) @ polynomial(2).T
    gains = np.array([0.5, 0.45, 0.55])[None] * np.array([1, 1.3, 0.8, 0.9])[:, None]
    shots = [Swatches(light * gain, ALL_VALID) for gain in gains]
    for reference in (list(gains), [*gains[:2], None, gains[3]]):
        common, result = pool(shots, reference)
        assert np.allclose(result, gains, rtol=1e-6) and np.allclose(common.light, light)


def test_light_equals_that_of_the_transforms_and_the_file_names_its_kind():
    levels = torch.arange(256, dtype=torch.float64) / 255
    assert np.allclose(colour_fit.LIGHT, to_linear(levels), atol=1e-6)
    file = fit_colours(SOURCE, Swatches(SOURCE, ALL_VALID)).to_dict()
    assert np.shape(file.pop("coefficients")) == (3, {1: 4, 2: 10}[file.pop("degree")])
    assert file == {"schema": 1, "kind": "polynomial", "light": "linear"}
