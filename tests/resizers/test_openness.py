"""The table: its figures at the ratios where they are known, and its verdicts."""

import pytest

from attacks.data.gallery import photographs
from attacks.resizers.openness import CLOSED, OPEN, RATIOS, Openness, openness_table
from transforms.resizing.resize import NAMES

pytestmark = pytest.mark.slow  # the table takes seconds

SMOOTH_KERNELS = {"cv2_area"} | {name for name in NAMES if name.startswith("pil_") and "nearest" not in name}
SMOOTH_KERNELS |= {name for name in NAMES if name.endswith("_aa")}


@pytest.fixture(scope="module")
def rows():
    return openness_table(photographs()["coffee"], (2, 3))


def test_antialiased_kernels_are_closed_and_the_others_open_from_three_pixels_a_pixel(rows):
    assert {row.kernel for row in rows if row.figures.verdict == "closed" and row.ratio == 3} == SMOOTH_KERNELS
    assert {row.kernel for row in rows if row.figures.verdict == "open" and row.ratio == 3} == {
        *NAMES
    } - SMOOTH_KERNELS
    assert all(row.figures.succeeds for row in rows)


def test_a_copy_of_one_pixel_in_r_by_r(rows):
    for row in rows:
        if "nearest" in row.kernel or (row.ratio == 3 and row.kernel not in SMOOTH_KERNELS):
            assert row.figures.unread == pytest.approx(1 - row.ratio**-2)
            assert row.ratio**2 - 1.01 < row.figures.gain <= row.ratio**2 + 1e-6
        elif row.kernel in SMOOTH_KERNELS:
            assert row.figures.unread == 0 and row.figures.gain < 1


def test_the_smallest_attack_on_a_copy_changes_only_what_is_read(rows):
    plain = next(row.figures.psnr for row in rows if row.kernel == "pil_box")
    for row in rows:
        if "nearest" in row.kernel:  # r^2 times less energy; the picture differs a little from pixel to pixel
            assert row.figures.psnr == pytest.approx(plain + {2: 6.0, 3: 9.5}[row.ratio], abs=0.8)


@pytest.mark.slow
@pytest.mark.parametrize("photo", ["coffee", "rocket"])
def test_no_share_lies_near_a_threshold(photo):
    shares = sorted(row.figures.seen for row in openness_table(photographs()[photo], RATIOS))
    assert not [share for share in shares if 0.75 * OPEN < share < 1.2 * OPEN or 0.6 * CLOSED < share < 1.1 * CLOSED]


@pytest.mark.parametrize(
    ("visibility", "succeeds", "verdict"),
    [(0.1, True, "open"), (0.11, True, "hard"), (0.1, False, "hard"), (0.5, True, "closed"), (0.5, False, "closed")],
)
def test_verdict(visibility, succeeds, verdict):
    assert Openness(0.0, 0.0, 0.0, visibility, succeeds).verdict == verdict


@pytest.mark.parametrize("ratio", [1, 0.5, 17, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(ValueError, match="`--ratios` must be above 1 and at most 16"):
        openness_table(photographs()["coffee"], (ratio,))
