"""The zoo: truths are measured, and the sanity checks follow them."""

import pytest
import torch

from scripts.benchmarks import zoo
from scripts.benchmarks.zoo_encoders import honest, rigged_encoders

#: Some of those that mask and of those that do not, by family.
MASK = (
    "ripples 0.03 sin 400",
    "staircase, falling flats",
    "rounding, mirrored gradient",
    "early pool, partly detached",
)
PASS = ("rounding, straight through", "staircase, rising flats", "gradient x 1e-12", "embedding x 1e12")


@pytest.mark.slow
def test_a_rigged_encoder_gives_one_embedding_a_picture():
    images = zoo.held_out_tiles().images[:3]
    with torch.no_grad():
        assert {case.encoder(images).shape for case in rigged_encoders().values()} == {(3, 32)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*MASK, *PASS])
def test_whether_an_encoder_masks_is_measured(name):
    assert zoo.does_mask(rigged_encoders()[name], 8) == (name in MASK)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("name", [*MASK, *PASS])
def test_the_verdict_follows_the_truth(name):
    failed = {check.name for check in zoo.battery(rigged_encoders()[name].encoder, 0).failed}
    assert ("masking" in failed) == (name in MASK), failed
    assert ("gradient scale" in failed) == (name == "gradient x 1e-12")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["fresh jitter", "fresh resize", "fresh dropout"])
def test_randomness_has_its_own_diagnosis(name):
    assert "same answer twice" in {check.name for check in zoo.battery(rigged_encoders()[name].encoder, 0).failed}


@pytest.mark.nightly
def test_no_honest_encoder_is_called_masking():
    for name, encoder in honest().items():
        assert "masking" not in {check.name for check in zoo.battery(encoder, 1).failed}, name
